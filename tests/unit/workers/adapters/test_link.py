from __future__ import annotations

import asyncio
import socket

from control_plane.workers.adapters.link import WorkerLink
from control_plane.workers.messages.from_workers import Listening, LoadModel
from control_plane.workers.messages.to_workers import Drain, Listen


async def pair() -> tuple[WorkerLink, WorkerLink]:
    one, other = socket.socketpair()
    for end in (one, other):
        end.setblocking(False)
    return await WorkerLink.over(one), await WorkerLink.over(other)


async def test_messages_arrive_in_order_both_ways() -> None:
    parent, worker = await pair()
    parent.send(Listen())
    parent.send(Drain(1.0))
    worker.send(Listening())
    assert [await worker.receive(), await worker.receive()] == [Listen(), Drain(1.0)]
    assert await parent.receive() == Listening()
    parent.close()
    worker.close()


async def test_one_larger_than_any_buffer_arrives_whole_before_the_end() -> None:
    parent, worker = await pair()
    large = LoadModel(1, "a", "{}", {"file:1/x": bytes(8 << 20)})
    async with asyncio.TaskGroup() as tasks:
        arriving = tasks.create_task(parent.receive())
        worker.send(large)
        await worker.flush()
        worker.close()
    assert arriving.result() == large
    assert await parent.receive() is None
    parent.close()


async def test_after_the_other_end_is_closed_sending_is_no_error() -> None:
    parent, worker = await pair()
    worker.close()
    assert await parent.receive() is None
    for _ in range(3):
        parent.send(Listen())
        await parent.flush()
        await asyncio.sleep(0)
    parent.close()
    parent.send(Listen())


async def test_an_end_in_the_middle_of_a_message_is_the_end() -> None:
    one, other = socket.socketpair()
    one.setblocking(False)
    parent = await WorkerLink.over(one)
    other.sendall(b"\0\0\0\x09half")
    other.close()
    assert await parent.receive() is None
    parent.close()
