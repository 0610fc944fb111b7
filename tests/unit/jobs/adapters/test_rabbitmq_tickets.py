"""Calls to RabbitMQ whose connection is closed under them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aio_pika.exceptions import ConnectionClosed

from control_plane.jobs.adapters.rabbitmq_tickets import _let_go, _may_be_closed


async def cancel(tag: str) -> None:
    """End as aiormq ends what is under way when it is closed without a reason."""
    raise Exception


async def test_a_consumer_is_let_go_of_a_connection_that_is_being_closed() -> None:
    arrived: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    link = SimpleNamespace(queue=SimpleNamespace(cancel=cancel), lost=asyncio.get_running_loop().create_future())
    await _let_go(cast("Any", link), "tag", arrived)
    assert arrived.cancelled()


def test_a_close_under_a_call_is_told_as_one() -> None:
    with pytest.raises(ConnectionClosed), _may_be_closed():
        raise Exception


def test_a_defect_stays_one() -> None:
    with pytest.raises(KeyError), _may_be_closed():
        raise KeyError
