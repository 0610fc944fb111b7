"""What workers find out about requests under which processes die or hang, and tell each other."""

from __future__ import annotations

import asyncio
import time
from math import inf

import pytest

from control_plane.inference.domain.queries_of_death import Finding, Record, Verdict
from control_plane.workers.messages.between_workers import FindingShared, HangSuspected
from control_plane.workers.messages.from_workers import (
    AskTurn,
    EndTurn,
)
from control_plane.workers.messages.to_workers import (
    Listen,
    TurnGiven,
)
from tests.aio import settle
from tests.unit.workers.workers_bench import opened, speaking

pytestmark = pytest.mark.virtual_time


class TestQueriesOfDeath:
    def shared(self, digest: bytes, verdict: Verdict, *, until_s: float = inf) -> FindingShared:
        return FindingShared("a", digest, Record(("s0", "s1"), min(until_s, time.monotonic() + 60.0), verdict), is_stub=True)

    async def test_what_one_finds_out_the_others_are_told_and_who_repairs(self) -> None:
        async with opened(3) as bench:
            heard = list[Finding]()
            bench.workers.findings.follow = heard.append
            found = [self.shared(b"x", Verdict.SUSPECT), FindingShared("a", b"x", None), self.shared(b"y", Verdict.GUILTY)]
            for each in found:
                bench.started[1].say(each)
            await settle()
            assert [worker.messages_of(FindingShared) for worker in bench.started] == [found, [], found]
            assert heard == [each.finding for each in found]

    async def test_what_one_gives_up_at_a_silent_replica_the_others_are_told(self) -> None:
        async with opened(3) as bench:
            suspected = [HangSuspected("a", b"x", 12.5), HangSuspected("a", b"x", 0)]
            for each in suspected:
                bench.started[1].say(each)
            await settle()
            assert [worker.messages_of(HangSuspected) for worker in bench.started] == [suspected, [], suspected]

    async def test_suspects_are_sent_one_at_a_time_over_all_and_none_for_one_that_ends_or_freezes(self) -> None:
        async with opened(3) as bench, speaking(bench.started[2]):
            first, second, third = bench.started
            first.say(self.shared(b"x", Verdict.SUSPECT))
            for worker in bench.started:
                worker.say(AskTurn(7, "a"))
            await settle()
            assert [worker.messages_of(TurnGiven) for worker in bench.started] == [[TurnGiven(7)], [], []]
            first.say(EndTurn(7, True))
            await settle()
            assert second.messages_of(TurnGiven)
            assert not third.messages_of(TurnGiven)
            await asyncio.sleep(2.0)
            assert not second.accepts, "it is frozen"
            assert third.messages_of(TurnGiven)
            third.end()
            await settle()
            first.say(AskTurn(8, "a"))
            await settle()
            assert first.messages_of(TurnGiven) == [TurnGiven(7), TurnGiven(8)]

    async def test_one_that_starts_is_told_of_those_that_are_refused_now(self) -> None:
        async with opened() as bench:
            for each in (self.shared(b"x", Verdict.SUSPECT), self.shared(b"z", Verdict.GUILTY, until_s=time.monotonic() - 1.0)):
                bench.started[0].say(each)
            guilty = self.shared(b"y", Verdict.GUILTY)
            bench.started[0].say(guilty)
            bench.started[0].say(FindingShared("a", b"y", None))
            bench.started[0].end()
            await asyncio.sleep(1.5)
            (told,) = bench.started[2].messages_of(FindingShared)
            assert told.finding.digest == ("a", b"y")
            assert told.record == guilty.record
            kinds = [type(message) for message in bench.started[2].told]
            assert kinds.index(FindingShared) < kinds.index(Listen)
