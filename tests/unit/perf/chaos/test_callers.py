"""Callers that say what is wrong and never ask again."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perf.chaos.answers import REPEATABLE
from perf.chaos.callers import Asked, Either, HttpCaller, Timeline, keep_asking
from tests.aio import run

ASKED = Asked(REPEATABLE, "m", deadline_s=0.2)
Reply = Callable[[float], bytes | None]


def http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %b X\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


def right(number: float) -> bytes:
    return http("200", json.dumps({"outputs": [{"data": [number]}]}).encode())


async def with_server(reply: Reply, ask: Callable[[str], Awaitable[Any]]) -> Any:
    """`reply` is given the number that was asked for; None: the connection ends; empty: nothing is said."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
                answer = reply(json.loads(body)["inputs"][0]["data"][0])
                if answer is None:
                    return
                writer.write(answer)
        except (asyncio.IncompleteReadError, OSError):
            pass  # it was closed, or aborted
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        return await ask(f"{host}:{port}")


@pytest.mark.parametrize(
    ("reply", "wrong"),
    [
        pytest.param(right, "", id="right"),
        pytest.param(lambda number: right(number + 1), "a wrong answer", id="somebody else's"),
        pytest.param(lambda number: http("503", b"busy"), "503 busy", id="refused"),
        pytest.param(lambda number: None, "connection lost", id="cut off"),
        pytest.param(lambda number: b"", "no answer within", id="nothing said"),
    ],
)
def test_what_is_wrong_is_said_once(reply: Reply, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf.chaos.callers._PATIENCE_S", 0.2)

    async def ask(address: str) -> Timeline:
        timeline, caller = Timeline(), HttpCaller(address)
        await timeline.ask(caller, ASKED)
        await caller.close()
        return timeline

    (answer,) = run(with_server(reply, ask)).answers
    assert answer.wrong.startswith(wrong)
    assert bool(answer.wrong) is bool(wrong)


def test_who_loses_one_gateway_goes_to_the_next() -> None:
    async def ask(address: str) -> list[str]:
        caller, timeline = Either([HttpCaller("127.0.0.1:1"), HttpCaller(address)]), Timeline()
        for _ in range(3):
            await timeline.ask(caller, ASKED)
        await caller.close()
        return [answer.wrong for answer in timeline.answers]

    first, *others = run(with_server(right, ask))
    assert first.startswith("connection lost")
    assert others == ["", ""]


def test_who_has_a_gateway_that_is_known_not_to_be_ready_goes_to_the_next_without_a_failure() -> None:
    async def ask(address: str) -> list[str]:
        not_ready: set[int] = set()
        caller = Either([HttpCaller(address), HttpCaller("127.0.0.1:1")], not_ready.__contains__)
        timeline = Timeline()
        await timeline.ask(caller, ASKED)
        not_ready.add(0)
        await timeline.ask(caller, ASKED)
        await caller.close()
        return [answer.wrong for answer in timeline.answers]

    first, second = run(with_server(right, ask))
    assert not first
    assert second.startswith("connection lost"), "it was sent to the other one, where nobody is"


def test_a_refusal_with_an_advice_is_one_for_now() -> None:
    async def ask(address: str) -> str:
        timeline, caller = Timeline(), HttpCaller(address)
        await timeline.ask(caller, ASKED)
        await caller.close()
        return timeline.answers[0].wrong

    told = b"HTTP/1.1 503 X\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy"
    assert run(with_server(lambda number: told, ask)) == "refused for now: 503 busy"


def test_a_request_is_awaited_until_it_is_answered_or_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf.chaos.callers._PATIENCE_S", 0.2)

    async def ask(address: str) -> list[bool]:
        timeline, caller, before_s = Timeline(), HttpCaller(address), time.monotonic()
        asking = asyncio.get_running_loop().create_task(timeline.ask(caller, ASKED))
        while not timeline.is_awaited_since(math.inf):
            await asyncio.sleep(0.01)
        found = [timeline.is_awaited_since(math.inf), timeline.is_awaited_since(before_s)]
        await asking
        await caller.close()
        return [*found, timeline.is_awaited_since(math.inf)]

    assert run(with_server(lambda number: b"", ask)) == [True, False, False]


def test_asking_goes_on_until_it_is_cancelled() -> None:
    async def ask(address: str) -> Timeline:
        timeline = Timeline()
        task = asyncio.get_running_loop().create_task(keep_asking(timeline, HttpCaller(address), [ASKED]))
        while len(timeline.answers) < 3:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return timeline

    assert not any(answer.wrong for answer in run(with_server(right, ask)).answers)


@pytest.mark.parametrize(("number", "kinds"), [(0.0, 3), (0.5, 1)])
def test_requests_are_equal_where_they_are_to_be(number: float, kinds: int) -> None:
    seen: list[float] = []

    def reply(told: float) -> bytes:
        seen.append(told)
        return right(told)

    async def ask(address: str) -> None:
        caller, timeline = HttpCaller(address), Timeline()
        for _ in range(3):
            assert not (await timeline.ask(caller, Asked(REPEATABLE, "m", number=number))).wrong
        await caller.close()

    run(with_server(reply, ask))
    assert len(seen) == 3
    assert len(set(seen)) == kinds
