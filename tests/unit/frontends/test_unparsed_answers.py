"""Calls are answered unparsed: late ones as one of an equal header block was, others from the verbatim cache."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, Overloaded
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.frontends.grpc.arrivals import Arrivals
from control_plane.frontends.grpc.unparsed_answers import LateHead, UnparsedAnswers
from control_plane.protocols.http2.headers import HeaderDecoder, KnownBlocks
from control_plane.protocols.http2.stream import WholeAnswer

pytestmark = pytest.mark.virtual_time


@dataclass
class Noted:
    """Note of the calls that were late: seconds that they had left, and how many they were."""

    left_s: list[tuple[float, int]] = field(default_factory=list)

    def __call__(self, principal: Principal, left_s: float, count: int) -> ControlPlaneError:
        self.left_s.append((left_s, count))
        return Overloaded("busy") if left_s > 0 else DeadlineExceeded("over")


def status(answer: WholeAnswer | None) -> bytes | None:
    if answer is None:
        return None
    headers, data, trailers = answer
    assert (headers, data) == (b"", b"")
    return dict(HeaderDecoder(KnownBlocks(), max_bytes=1 << 14).decode(trailers))[b"grpc-status"]


def came(at_s: float) -> Arrivals:
    arrivals = Arrivals(lambda: 0)
    arrivals.began_backlog(at_s)
    return arrivals


@dataclass
class Bench:
    """Answers to the calls of a backlog that has come at 0, before a verbatim cache that has nothing."""

    now_s: float = 0.0
    noted: Noted = field(default_factory=Noted)

    def __post_init__(self) -> None:
        self.calls = UnparsedAnswers(lambda call, waited_s: None, came(asyncio.get_running_loop().time()))

    async def status(self, at_s: float, block: bytes = b"block") -> bytes | None:
        await asyncio.sleep(at_s - self.now_s)
        self.now_s = at_s
        return status(self.calls.answer((block, b"data")))

    def remember(self, block: bytes = b"block") -> None:
        self.calls.remember(block, LateHead(ANONYMOUS, 2.0, self.noted))


async def test_those_of_an_equal_head_are_refused_once_they_are_late_themselves() -> None:
    bench = Bench()
    bench.remember()
    assert [await bench.status(at_s) for at_s in (0.6, 1.0, 2.5)] == [None, b"14", b"4"]
    assert bench.noted.left_s == [(1.0, 1), (-0.5, 1)]
    assert await bench.status(2.5, b"other") is None


async def test_those_that_could_still_be_asked_elsewhere_are_noted_together() -> None:
    bench = Bench()
    bench.remember()
    assert [await bench.status(at_s) for at_s in (1.0, 1.1, 1.2, 1.3, 2.1)] == [b"14"] * 4 + [b"4"]
    assert [count for _, count in bench.noted.left_s] == [1, 1]
    bench.calls.forget_heads()
    bench.calls.forget_heads()
    assert [count for left_s, count in bench.noted.left_s if left_s > 0] == [1, 3]


async def test_they_are_refused_by_their_head_alone() -> None:
    bench = Bench()
    assert bench.calls.refuse_head(b"block") is None
    bench.remember()
    assert bench.calls.refuse_head(b"block") is None
    await asyncio.sleep(1.5)
    assert status((b"", b"", bench.calls.refuse_head(b"block") or b"")) == b"14"
    assert bench.calls.refuse_head(b"other") is None


async def test_for_one_backlog() -> None:
    bench = Bench()
    bench.remember()
    bench.calls.forget_heads()
    assert await bench.status(1.5) is None


async def test_a_few_heads_are_remembered() -> None:
    bench, blocks = Bench(), [b"%d" % number for number in range(100)]
    for block in blocks:
        bench.remember(block)
    statuses = [await bench.status(1.5, block) for block in blocks]
    assert 4 < statuses.count(b"14") < 32


async def test_else_the_verbatim_cache_is_asked() -> None:
    arrivals = Arrivals(lambda: 0)
    calls = UnparsedAnswers(lambda call, waited_s: (b"", call[1], b"%d" % waited_s), arrivals)
    assert calls.answer((b"block", b"data")) == (b"", b"data", b"0")
    arrivals.began_backlog(asyncio.get_running_loop().time() - 3.0)
    assert calls.answer((b"block", b"data")) == (b"", b"data", b"3")
