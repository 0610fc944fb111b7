"""Calls to RabbitMQ whose connection is closed under them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aio_pika.exceptions import ConnectionClosed
from pydantic import SecretStr

from control_plane.jobs.adapters.rabbitmq_tickets import RabbitmqTickets, _let_go, _may_be_closed
from tests.aio import settle


async def cancel(tag: str) -> None:
    """End as aiormq ends what is under way when it is closed without a reason."""
    raise Exception


async def test_a_consumer_is_let_go_of_a_connection_that_is_being_closed() -> None:
    arrived: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    link = SimpleNamespace(queue=SimpleNamespace(cancel=cancel), lost=asyncio.get_running_loop().create_future())
    await _let_go(cast("Any", link), "tag", arrived)
    assert arrived.cancelled()


@pytest.mark.parametrize("how", [Exception, asyncio.CancelledError])
async def test_a_close_under_a_call_is_told_as_one(how: type[BaseException]) -> None:
    """aiormq's own heartbeat ends calls with CancelledError; a sweeper or a runner would end with it, and nobody know."""
    with pytest.raises(ConnectionClosed), _may_be_closed():
        raise how


async def test_a_task_that_is_told_to_end_in_a_call_ends() -> None:
    async def call() -> None:
        with _may_be_closed():
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(call())
        await settle()
        task.cancel()
    assert task.cancelled()


async def test_a_defect_stays_one() -> None:
    with pytest.raises(KeyError), _may_be_closed():
        raise KeyError


@pytest.mark.parametrize("ends_well", [False, True])
async def test_a_call_that_the_broker_ends_as_its_task_is_told_to_end_ends_the_task(ends_well: bool) -> None:
    """aiormq waits with `wait_for`; a sweeper whose cancellation that swallowed kept its process from ending."""
    confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def publish(*_: object, **__: object) -> None:
        await asyncio.wait_for(confirmed, 60)

    tickets = RabbitmqTickets(SecretStr("amqp://localhost"))
    lost = asyncio.get_running_loop().create_future()
    tickets._link = cast("Any", SimpleNamespace(channel=SimpleNamespace(default_exchange=SimpleNamespace(publish=publish)), lost=lost))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(tickets.publish())
        await settle()
        if ends_well:
            confirmed.set_result(None)
        else:
            confirmed.set_exception(ConnectionClosed(0, "it ends"))
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
