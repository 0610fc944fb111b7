"""Rollouts, rollbacks and aborts in a row on a fleet of two real Tritons and two workers, under load over HTTP, gRPC, streams and
sequences; then versions that are bad in all ways, with a shadow and without; then what a shadow costs callers.

    python -m perf.rollouts [--rollouts 20] [--bad wrong slow ...] [--weights 500 5000] [--cost 8]

Each version answers with a number of its own, and callers know who is assigned where: an answer by another version, a sequence of two
versions, or a wrong hit of the response cache is counted. Everything stays on this machine's loopback and ends with the scenario. Writes
perf/results/rollouts.json and .md.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from control_plane.core.errors import ControlPlaneError
from perf.measurement import harness
from perf.measurement.report import Result
from perf.rollouts import models
from perf.rollouts.assigned import Period, misassigned, torn
from perf.rollouts.callers import PLAIN, SEQUENCE, Answered, Callers
from perf.rollouts.cost import cost_of_shadow
from perf.rollouts.fleet import Fleet, fleet, periods_of
from perf.rollouts.report import COST, IN_A_ROW, NO_SHADOW, SHADOW, Case, Report, Run

_STEP = {"samples": 30, "min_s": 0.5}
_SHADOW = {"weight": 5000, "samples": 40, "min_s": 0.5}
_AGREEMENT = {"kind": "tolerance", "output": "Y"}
_ENDINGS = ("promoted", "aborted", "promoted", "rolled_back")
"""How rollouts that follow each other end."""
_REST_S = 1.5
"""Pause after a rollout, until it holds everywhere."""


def main() -> None:
    parser = harness.parser(__doc__, rounds=1)
    parser.add_argument("--rollouts", type=int, default=20, help="in a row")
    parser.add_argument("--bad", nargs="*", choices=[*models.BAD], default=list(models.BAD), help="bad versions")
    parser.add_argument("--weights", nargs="+", type=int, default=[500, 5000], help="of each rollout's steps, of 10,000 requests")
    parser.add_argument("--pause-s", type=float, default=0.004, help="of each caller, after an answer")
    parser.add_argument("--cost", type=int, default=8, help="turns with a shadow and without; 0 for none")
    parser.add_argument("--turn-s", type=float, default=6.0, help="of one turn")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    runs: dict[Case, list[Run]] = {}
    reasons: dict[str, str] = {}
    wrong: list[str] = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory(prefix="tidegate-rollouts-", ignore_cleanup_errors=True) as name, fleet(Path(name)) as site:
            drill = _Drill(site, arguments.weights, arguments.pause_s)
            if arguments.rollouts:
                runs.setdefault(Case(IN_A_ROW), []).append(drill.in_a_row(arguments.rollouts))
            for kind, way in itertools.product(arguments.bad, (SHADOW, NO_SHADOW)):
                runs.setdefault(Case(kind, way), []).append(drill.bad(kind, way))
            reasons |= drill.reasons
            wrong += drill.wrong
        if arguments.cost:
            harness.say("what a shadow costs")
            runs.setdefault(Case(COST), []).append(cost_of_shadow(arguments.cost, arguments.turn_s))
    return Result(runs, more={"reasons": reasons, "wrong": wrong[:50]})


class _Drill:
    """Driver of rollouts on one fleet: begins one after the other, and notes how each ended."""

    def __init__(self, site: Fleet, weights: Sequence[int], pause_s: float) -> None:
        self._site, self._pause_s = site, pause_s
        self._steps = [{"weight": weight, **_STEP} for weight in weights]
        self._now = {PLAIN: models.ONE, SEQUENCE: models.SEQUENCE_ONE}
        self._ways = itertools.cycle((SHADOW, NO_SHADOW))
        self.reasons: dict[str, str] = {}
        """Why bad versions were rolled back."""
        self.wrong: list[str] = []
        """What was wrong, in words."""

    def in_a_row(self, count: int) -> Run:
        """Run so many rollouts, of both routes at the same time, that end in all ways."""
        periods: dict[str, list[Period]] = {PLAIN: [], SEQUENCE: []}
        as_wanted = 0
        with self._asking() as answered:
            for number, ending in enumerate(itertools.islice(itertools.cycle(_ENDINGS), count), 1):
                harness.say(f"{number} of {count}: {ending}")
                since_s = time.time()
                ends = [self._one(route, ending) for route in (PLAIN, SEQUENCE)] if ending != "aborted" else self._aborted()
                as_wanted += all(end["phase"] == ending for end in ends if end["route"] == PLAIN or ending != "rolled_back")
                time.sleep(_REST_S)
                for end in ends:
                    periods[end["route"]] += periods_of(end, now=self._now[end["route"]], since_s=since_s, until_s=time.time())
                    if end["phase"] == "promoted":
                        self._now[end["route"]] = end["model"]
        users = [each for each in answered if each.way in ("http", "grpc")]
        others = [each for each in answered if each.way in ("stream", "sequence")]
        lost = list(misassigned(users, periods[PLAIN], may_stand_in=True))
        broken = {}
        for route, of_route in periods.items():
            broken |= torn([each for each in others if each.route == route], of_route)
        self.wrong += [repr(each) for each in lost] + [f"{unit}: {told}" for unit, told in broken.items()]
        counted = _counted(answered, self.wrong)
        return Run(count, len(answered), *counted, len(lost) + len(broken), as_wanted)

    def bad(self, kind: str, way: str) -> Run:
        """Run one rollout to a bad version."""
        harness.say(f"{kind}, {way}")
        model, site = models.bad(kind), self._site
        site.whole_again(self._now[PLAIN])
        copied = site.copied()
        with self._asking() as answered:
            time.sleep(1.0)
            began_s = time.time()
            ended, reason = True, ""
            try:
                site.begin(PLAIN, model, **self._how(way))
            except ControlPlaneError as exc:
                ended, reason = kind == "fails to load", f"refused: {exc}"
            else:
                end = site.ended(PLAIN)
                ended, reason = end["phase"] == "rolled_back", end["reason"]
                if end["phase"] == "promoted":  # or the next one would be held against it
                    site.point(PLAIN, self._now[PLAIN])
            after_s = time.time() - began_s
            time.sleep(_REST_S)
        self.reasons[f"{kind}, {way}"] = reason
        failed, wrong = _counted(answered, self.wrong)
        touched = sum(each.model == model for each in answered) + failed
        copied = site.copied() - copied
        site.forget(model)
        site.whole_again(self._now[PLAIN])
        return Run(1, len(answered), failed, wrong, 0, int(ended), touched, copied, after_s)

    @contextmanager
    def _asking(self) -> Iterator[list[Answered]]:
        with Callers(self._site.address("http"), self._site.address("grpc"), pause_s=self._pause_s) as callers:
            yield callers.answered

    def _one(self, route: str, ending: str) -> dict[str, Any]:
        """A rollout of one route to its end: of a version that is wrong where it is to be rolled back."""
        if ending == "rolled_back":
            if route == SEQUENCE:
                return self._site.rollout(route)  # there is no bad version of it
            self._site.begin(route, models.bad("fails"), **self._how(next(self._ways)))
        else:
            self._site.begin(route, self._other(route), **(self._how(SHADOW) if route == PLAIN else self._how("")))
        return self._site.ended(route)

    def _aborted(self) -> list[dict[str, Any]]:
        """Rollouts of both routes that are ended by hand once the next versions have requests."""
        stays = [{"weight": 2000, "samples": 10**6, "min_s": 0.0}]
        for route in (PLAIN, SEQUENCE):
            self._site.begin(route, self._other(route), **((self._how(SHADOW) if route == PLAIN else self._how("")) | {"steps": stays}))
        for route in (PLAIN, SEQUENCE):
            self._site.until(route, lambda found: found["weight"] > 0)
            time.sleep(0.3)
            self._site.abort(route)
        return [self._site.ended(route) for route in (PLAIN, SEQUENCE)]

    def _how(self, way: str) -> dict[str, Any]:
        if way == SHADOW:
            return {"steps": self._steps, "shadow": _SHADOW, "agreement": _AGREEMENT, "bake_s": 1.0}
        samples = 5 if not way else 30  # sequences are few
        return {"steps": [{**step, "samples": samples} for step in self._steps], "shadow": None, "bake_s": 1.0}

    def _other(self, route: str) -> str:
        ones = (models.ONE, models.OTHER) if route == PLAIN else (models.SEQUENCE_ONE, models.SEQUENCE_OTHER)
        return next(each for each in ones if each != self._now[route])


def _counted(answered: list[Answered], told: list[str]) -> tuple[int, int]:
    """Requests that failed, and that were answered wrongly."""
    failed, wrong = [each for each in answered if each.failed], [each for each in answered if each.wrong]
    told += [repr(each) for each in (*failed, *wrong)]
    return len(failed), len(wrong)


if __name__ == "__main__":
    main()
