"""Tuner: measures configurations of a model against each other within a time budget, for `tidegate tune`.

The search measures every candidate that the policy (`domain/search`) names, one after the other, each in a
server of its own. In the final rounds the best of them and the default run side by side and are measured in
turns, so that a machine whose speed drifts is fair to all. However the run ends, also by cancellation, all
its servers and load generators end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded
from control_plane.tuning.domain.candidates import DEFAULT, Candidate, Level, Round
from control_plane.tuning.domain.search import (
    FINAL_ROUNDS,
    FINALISTS,
    Axis,
    Costs,
    Recommendation,
    choose_finalists,
    decide,
    expected_candidates,
    final_run_s,
    may_screen,
    medians,
    next_candidate,
    search_run_s,
)
from control_plane.tuning.ports import LoadGenerator, TuningServers

_WARM_UP_S = 0.6
"""Load before the first measurement: the first requests of a session allocate what later ones use."""


@dataclass(frozen=True, slots=True)
class TuningPlan:
    """Search space of a tuning run: the configurations to try, the loads, and the time budget."""

    axes: Sequence[Axis]
    concurrencies: Sequence[int]
    limit_ms: float
    """Highest acceptable p99, in milliseconds."""
    budget_s: float


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """Progress of a run: measurements done, and expected as far as is known."""

    doing: str
    done: int
    expected: int


@dataclass(frozen=True, slots=True)
class Row:
    """Median of one candidate's measurements at one concurrency, over `rounds` rounds."""

    candidate: Candidate
    rounds: int
    level: Level


@dataclass(frozen=True, slots=True)
class TuningResult:
    """All measurements of a run, and the recommendation on them."""

    screened: Mapping[Candidate, Round]
    """One round of the search for each candidate, in order; empty if it failed, for the reason in
    `failures`."""
    rounds: Mapping[Candidate, Sequence[Round]]
    """The final rounds of the default and of the best other candidates."""
    failures: Mapping[Candidate, str]
    recommendation: Recommendation

    def rows(self) -> Iterator[Row]:
        """Yield the rows of tables and plots: finalists over their final rounds, then the others over their
        single round.
        """
        measured = {candidate: rounds for candidate, rounds in self.rounds.items() if rounds}
        measured |= {candidate: [levels] for candidate, levels in self.screened.items() if levels and candidate not in measured}
        for candidate, rounds in measured.items():
            for level in medians(rounds):
                yield Row(candidate, len(rounds), level)


class Tuner:
    """A tuning run: carries out one plan."""

    def __init__(
        self, plan: TuningPlan, *, servers: TuningServers, load: LoadGenerator, report: Callable[[TuningProgress], None] = lambda _: None
    ) -> None:
        self._plan = plan
        self._servers = servers
        self._load = load
        self._report = report
        self._screened: dict[Candidate, Round] = {}
        self._failures: dict[Candidate, str] = {}
        self._run_s = search_run_s(plan.axes, levels=len(plan.concurrencies), budget_s=plan.budget_s)
        self._started_s = 0.0
        self._start_costs_s: list[float] = []
        self._round_costs_s: list[float] = []
        self._done = 0
        self._expected = (expected_candidates(plan.axes) + (1 + FINALISTS) * FINAL_ROUNDS) * len(plan.concurrencies)

    async def run(self) -> TuningResult:
        """Measure and decide. Raises ControlPlaneError if not even the default can be served or measured."""
        self._started_s = _now_s()
        await self._screen()
        rounds = await self._run_finals(choose_finalists(self._screened, limit_ms=self._plan.limit_ms))
        return TuningResult(self._screened, rounds, self._failures, decide(rounds, limit_ms=self._plan.limit_ms))

    async def _screen(self) -> None:
        while (candidate := next_candidate(self._plan.axes, self._screened, limit_ms=self._plan.limit_ms)) is not None:
            if candidate != DEFAULT and not self._may_screen():
                return
            before_s = _now_s()
            try:
                self._screened[candidate] = await self._screen_one(candidate)
            except ControlPlaneError as exc:
                self._give_up(candidate, exc)
                # Measured, without a result: otherwise the search would ask for it again.
                self._screened[candidate] = ()
            else:
                self._start_costs_s.append(_now_s() - before_s - self._round_costs_s[-1])

    async def _screen_one(self, candidate: Candidate) -> Round:
        try:
            async with asyncio.timeout(self._plan.budget_s - self._elapsed_s()), AsyncExitStack() as stack:
                address = await self._serve(candidate, stack)
                return await self._measure(candidate, address, self._run_s)
        except TimeoutError as exc:
            raise DeadlineExceeded(f"{candidate.label} was not served and measured within {self._plan.budget_s:g} s (--budget-s)") from exc

    def _may_screen(self) -> bool:
        return may_screen(self._costs(), screened=len(self._screened), elapsed_s=self._elapsed_s(), budget_s=self._plan.budget_s)

    def _costs(self) -> Costs:
        return Costs(_mean(self._start_costs_s), _mean(self._round_costs_s), self._run_s)

    async def _run_finals(self, finalists: Sequence[Candidate]) -> dict[Candidate, list[Round]]:
        self._expected = self._done + len(finalists) * FINAL_ROUNDS * len(self._plan.concurrencies)
        rounds: dict[Candidate, list[Round]] = {DEFAULT: []}
        left_s = self._plan.budget_s - self._elapsed_s()
        self._run_s = final_run_s(self._costs(), finalists=len(finalists), left_s=left_s)
        async with AsyncExitStack() as stack:
            addresses: dict[Candidate, str] = {}
            # All are up before the first round, and are measured in turns: a machine that is slower for a while is
            # so for each of them.
            for candidate in finalists:
                try:
                    addresses[candidate] = await self._serve(candidate, stack)
                    rounds[candidate] = []
                except ControlPlaneError as exc:
                    self._give_up(candidate, exc)
            self._round_costs_s.clear()  # final rounds have another length than those of the search
            for _ in range(FINAL_ROUNDS):
                if self._elapsed_s() + len(rounds) * _mean(self._round_costs_s) > self._plan.budget_s:
                    break
                await self._run_final_round(addresses, rounds)
        return rounds

    async def _run_final_round(self, addresses: Mapping[Candidate, str], rounds: dict[Candidate, list[Round]]) -> None:
        for candidate in list(rounds):
            try:
                rounds[candidate].append(await self._measure(candidate, addresses[candidate], self._run_s))
            except ControlPlaneError as exc:
                self._give_up(candidate, exc)
                del rounds[candidate]

    def _give_up(self, candidate: Candidate, error: ControlPlaneError) -> None:
        if candidate == DEFAULT:
            raise error
        self._failures[candidate] = str(error)

    async def _serve(self, candidate: Candidate, stack: AsyncExitStack) -> str:
        """Start a server for the candidate and warm it up; return its address. It runs until the stack is
        closed.
        """
        self._say(f"starting {candidate.label}")
        address = await stack.enter_async_context(self._servers.serve(candidate))
        await self._load.measure(address, concurrency=max(self._plan.concurrencies), duration_s=_WARM_UP_S)
        return address

    async def _measure(self, candidate: Candidate, address: str, duration_s: float) -> Round:
        before_s, levels = _now_s(), []
        for concurrency in self._plan.concurrencies:
            self._say(f"{candidate.label}, {concurrency} in flight")
            levels.append(await self._load.measure(address, concurrency=concurrency, duration_s=duration_s))
            self._done += 1
        self._round_costs_s.append(_now_s() - before_s)
        return tuple(levels)

    def _say(self, doing: str) -> None:
        self._report(TuningProgress(doing, self._done, max(self._done, self._expected)))

    def _elapsed_s(self) -> float:
        return _now_s() - self._started_s


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
