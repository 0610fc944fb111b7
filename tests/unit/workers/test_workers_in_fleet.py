"""What workers of a fleet are told, and when."""

from __future__ import annotations

import asyncio

from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.memory import Wish
from control_plane.fleet.domain.report import CopyUse, FleetReport, Wanted
from control_plane.fleet.ownership.reports import OthersReports
from control_plane.fleet.view.state import FleetState
from control_plane.triton.servers import Servers
from control_plane.workers.fleet_for_workers import FleetForWorkers
from control_plane.workers.messages import (
    Changed,
    CopiesSeen,
    FingerprintsChanged,
    Listen,
    ModelsSeen,
    Reported,
    ServersSeen,
    UnloadModel,
    UpstreamDown,
    UpstreamUp,
)
from tests.aio import run_in_virtual_time, settle
from tests.fakes import FakeUpstream
from tests.unit.fleet.fleet_bench import model
from tests.unit.workers.workers_bench import KNOWN, Bench, opened


class TestFleet:
    """Of two servers, the first up with model a."""

    def fleet(self, bench: Bench) -> None:
        servers = Servers(None, ("s0", "s1"))
        self.state = state = FleetState(servers, budget_bytes=100, now_s=asyncio.get_running_loop().time)
        state.describe({"a": model("a"), "b": model("b")})
        self.reports = OthersReports(state, servers, want=lambda wanted: self.wanted.append(wanted))
        self.wanted: list[Wanted] = []
        self.for_workers = FleetForWorkers(state, servers, reports=self.reports)
        bench.workers.join_fleet(self.for_workers)
        servers.members["s0"].up(FakeUpstream())
        state.observe("s0", [ModelVersion("a", "1", ModelState.READY, "")])

    def test_they_know_all_of_it_before_they_listen_and_so_does_one_that_comes_back(self) -> None:
        async def main() -> None:
            async with opened(1, prepare=self.fleet) as bench:
                bench.started[0].end()
                await asyncio.sleep(1.5)
                assert len(bench.started) == 2
                for worker in bench.started:
                    kinds = [type(message) for message in worker.told]
                    assert kinds[0] is ServersSeen
                    assert worker.told_of(UpstreamUp)[0].server == "s0"
                    assert worker.told_of(UpstreamDown)[0].server == "s1"
                    (models,) = worker.told_of(ModelsSeen)
                    assert models.models.keys() == {"a", "b"}
                    assert max(kinds.index(ModelsSeen), kinds.index(CopiesSeen)) < kinds.index(Listen)

        run_in_virtual_time(main())

    def test_what_they_report_is_part_of_the_picture_(self) -> None:
        async def main() -> None:
            async with opened(prepare=self.fleet) as bench:
                told = FleetReport("w", {"a": 1}, {}, {"127.0.0.1:2": {"a": CopyUse(3, 0)}}, (Wanted("b", 0),))
                bench.started[0].say(Reported(told))
                await settle()
                assert self.state.fleet.servers["s0"].copies["a"].in_flight == 3
                assert self.wanted == [Wanted("b", 0)]

        run_in_virtual_time(main())

    def test_what_came_of_a_change_is_told_after_what_it_changed(self) -> None:
        async def main() -> None:
            async with opened(prepare=self.fleet) as bench:
                self.state.follow({"a": Wish(is_withdrawn=True)})
                bench.started[0].say(UnloadModel(1, "a", False))
                await settle()
                for worker in bench.started:
                    *_, models = worker.told_of(ModelsSeen)
                    seen = models.models["a"]
                    assert seen is not None
                    assert seen.is_withdrawn
                assert bench.started[0].told[-1] == Changed(1)

        run_in_virtual_time(main())

    def test_a_copy_is_ready_to_them_only_once_they_know_what_its_answers_are_made_of(self) -> None:
        async def main() -> None:
            async with opened(1, prepare=self.fleet) as bench:
                told = bench.started[0].told
                self.state.settling.add(("s0", "b"))
                self.see("a", "b")
                assert bench.started[0].told_of(CopiesSeen)[-1].copies["b"].state is ModelState.LOADING
                await bench.workers.publish({"b": KNOWN})
                self.state.settling.discard(("s0", "b"))
                self.see("a", "b")
                seen = next(at for at, each in enumerate(told) if isinstance(each, CopiesSeen) and is_ready(each, "b"))
                published = next(at for at, each in enumerate(told) if isinstance(each, FingerprintsChanged) and each.changes.get("b"))
                assert published < seen

        run_in_virtual_time(main())

    def see(self, *names: str) -> None:
        self.state.observe("s0", [ModelVersion(name, "1", ModelState.READY, "") for name in names])
        self.for_workers.tell_changes()


def is_ready(seen: CopiesSeen, model_name: str) -> bool:
    return model_name in seen.copies and seen.copies[model_name].state is ModelState.READY
