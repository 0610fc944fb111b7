"""Drain of a gRPC server under load, with and without another worker on the same port."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import grpc.aio

from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.grpc.server import GrpcServer
from control_plane.host.network.listening import bind_shared_tcp
from tests.wire.grpc_frontend import BUDGET_BYTES, INFER, LIMITS, Bench, frontend, infer_message, until


class Worker:
    """One of several gRPC servers on a port, in front of the services of `it`."""

    def __init__(self, it: Bench, port: int = 0) -> None:
        self.server = GrpcServer(it.server.application, LIMITS, BodyBudget(BUDGET_BYTES))
        self.bound = bind_shared_tcp("127.0.0.1", port, setting="--grpc-port")
        self.port: int = self.bound.getsockname()[1]

    async def listen(self, tasks: asyncio.TaskGroup) -> Worker:
        await self.server.listen(tasks, self.bound)
        return self


class Load:
    """Callers that call one call after another, each over a connection of its own."""

    def __init__(self, port: int, callers: int = 8) -> None:
        self._target = f"127.0.0.1:{port}"
        self._callers = callers
        self._is_over = False
        self.answered = 0
        self.failures = Counter[str]()

    def start(self, tasks: asyncio.TaskGroup) -> Load:
        for _ in range(self._callers):
            tasks.create_task(self._call())
        return self

    def stop(self) -> None:
        self._is_over = True

    async def goes_on(self) -> None:
        before = self.answered
        await until(lambda: self.answered > before + 50)

    async def _call(self) -> None:
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100))
        async with grpc.aio.insecure_channel(self._target, options=options) as channel:
            infer = channel.unary_unary(INFER)
            while not self._is_over:
                try:
                    await infer(infer_message())
                    self.answered += 1
                except grpc.aio.AioRpcError as exc:
                    self.failures[f"{exc.code().name}: {exc.details()}"] += 1
                    await asyncio.sleep(0.01)


async def test_no_call_is_lost_while_workers_come_and_go() -> None:
    async with frontend() as it, asyncio.TaskGroup() as tasks:
        worker = await Worker(it).listen(tasks)
        load = Load(worker.port).start(tasks)
        for _ in range(8):
            await load.goes_on()
            leaving, worker = worker, await Worker(it, worker.port).listen(tasks)
            await leaving.server.drain(20)
        await load.goes_on()
        load.stop()
        await until(lambda: not worker.server._connections)
        await worker.server.drain(20)
        assert load.failures == {}


async def test_without_another_worker_calls_are_unavailable_until_there_is_one() -> None:
    async with frontend() as it, asyncio.TaskGroup() as tasks:
        worker = await Worker(it).listen(tasks)
        load = Load(worker.port).start(tasks)
        await load.goes_on()
        await worker.server.drain(20)
        await until(lambda: load.failures.total() > 20)
        following = await Worker(it, worker.port).listen(tasks)
        await load.goes_on()
        load.stop()
        await until(lambda: not following.server._connections)
        await following.server.drain(20)
        assert all(each.startswith("UNAVAILABLE: failed to connect") for each in load.failures), load.failures
