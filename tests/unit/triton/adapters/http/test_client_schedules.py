"""Random schedules of callers and Triton: whatever happens in whatever order, no slot is lost and no
connection leaks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.core.endpoints import TcpAddress
from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.protocols.http1 import HttpRequest
from control_plane.triton.adapters.http.client import HttpClient
from tests.aio import run
from tests.unit.triton.adapters.http_bench import assert_all_slots_are_there
from tests.unit.triton.adapters.scripted_triton import OK, Exchange, scripted_triton

LIMIT = 2
_ANSWERS = {
    "answer": OK,
    "answer and close": OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
    "answer twice": OK + OK,
    "garbage": b"garbage\r\n\r\n",
    "close": b"",
}


@dataclass(frozen=True)
class Act:
    """Behaviour of one call: after how many turns of the loop Triton answers, what, and after how many the
    caller leaves.
    """

    triton_turns: int
    answer: str
    leaves_after: int | None
    timeout_s: float


_ACTS = st.builds(
    Act,
    triton_turns=st.integers(0, 6),
    answer=st.sampled_from(sorted(_ANSWERS)),
    leaves_after=st.one_of(st.none(), st.integers(0, 25)),
    timeout_s=st.sampled_from([20.0, 20.0, 0.0, 0.001]),
)


@settings(max_examples=60)
@given(acts=st.lists(_ACTS, min_size=1, max_size=8))
def test_every_slot_and_no_connection_is_left(acts: list[Act]) -> None:
    async def triton_does(exchange: Exchange) -> bytes:
        act = acts[int(exchange.request.split()[1][1:])]
        for _ in range(act.triton_turns):
            await asyncio.sleep(0)
        return _ANSWERS[act.answer]

    async def caller_does(http: HttpClient, number: int) -> None:
        act = acts[number]
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(_send(http, number, act.timeout_s))
            if act.leaves_after is not None:
                for _ in range(act.leaves_after):
                    await asyncio.sleep(0)
                sending.cancel()

    async def main() -> None:
        async with scripted_triton(triton_does) as triton:
            http = HttpClient(TcpAddress("127.0.0.1", triton.port), max_connections=LIMIT)
            async with asyncio.TaskGroup() as tasks:
                for number in range(len(acts)):
                    tasks.create_task(caller_does(http, number))
            await assert_all_slots_are_there(http, triton, LIMIT)
            await triton.wait_until_open(LIMIT)  # those that serve now; none was forgotten
            await http.close()
            await triton.wait_until_open(0)

    run(main(), loop_factory=asyncio.SelectorEventLoop)


async def _send(http: HttpClient, number: int, timeout_s: float) -> None:
    try:
        answer = await http.send(HttpRequest(b"POST", b"/%d" % number), timeout_s=timeout_s)
    except (DeadlineExceeded, UpstreamUnavailable):
        return
    assert answer.body == b"ok"
