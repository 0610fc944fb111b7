"""Replies of the parent reach the callers that wait for them."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.workers.replies import Replies
from tests.aio import settle


async def test_each_caller_gets_the_reply_of_its_number() -> None:
    replies, sent = Replies[str](), list[int]()
    async with asyncio.TaskGroup() as tasks:
        one, other = (tasks.create_task(replies.ask(sent.append)) for _ in range(2))
        await settle()
        replies.answered(sent[1], "other")
        replies.answered(sent[0], "one")
    assert (one.result(), other.result()) == ("one", "other")


async def test_replies_for_nobody_are_dropped() -> None:
    replies, sent = Replies[str](), list[int]()
    leaving = asyncio.get_running_loop().create_task(replies.ask(sent.append))
    await settle()
    leaving.cancel()
    await asyncio.wait([leaving])

    replies.answered(sent[0], "late")
    replies.answered(99, "never asked for")
    waiting = asyncio.get_running_loop().create_task(replies.ask(sent.append))
    await settle()
    replies.answered(sent[1], "its own")
    assert await waiting == "its own"


async def test_who_cannot_send_waits_for_nothing() -> None:
    def send(number: int) -> None:
        raise OSError("the link is closed")

    replies = Replies[str]()
    with pytest.raises(OSError, match="closed"):
        await replies.ask(send)
    replies.answered(0, "late")
