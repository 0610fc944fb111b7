"""`tidegate rollouts` against the admin API on a real port."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from control_plane.objects.domain.rollout import Phase, Rollout, Step
from control_plane.objects.domain.rollout_policy import GatePolicy, RolloutPolicy
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from tests.aio import run
from tests.e2e.tidegate import run_cli
from tests.http_server import AskedRequest, http_server
from tests.unit.admin.admin_bench import Bench
from tests.unit.cli.command import Tidegate
from tests.wire.admin.admin import admin_server


def triton(request: HttpRequest) -> HttpAnswer:
    return make_answer(200, json.dumps({"output": [], "versions": ["1", "3"]}).encode())


@pytest.fixture(scope="module")
def bench() -> Bench:
    bench = Bench(authentication=True)
    bench.upstream.http.answer = triton
    return bench


@pytest.fixture(scope="module")
def where(bench: Bench) -> Iterator[tuple[str, str]]:
    key = bench.make_key()
    with admin_server(bench) as url:
        yield url, key


@pytest.fixture(autouse=True)
def route(bench: Bench) -> None:
    run(bench.store.put(Kind.ROUTE, "r", to_body(Route("r", "v1"))))
    bench.store.state.objects.pop((Kind.ROLLOUT, "r"), None)


def rollouts(where: tuple[str, str], *arguments: str) -> tuple[int, list[list[str]], str]:
    """Exit status, cells of the lines, and remarks; cells of more than one word are several."""
    ended = run_cli("rollouts", *arguments, "--admin-url", where[0], env={"TIDEGATE_API_KEY": where[1]})
    return ended.returncode, [line.split() for line in ended.stdout.splitlines()], ended.stderr


def stored(bench: Bench) -> Rollout:
    return run(bench.rollouts.get("r")).value


def test_start_shows_the_first_step_and_what_is_next(bench: Bench, where: tuple[str, str]) -> None:
    status, lines, remark = rollouts(where, "start", "r", "--to", "v2:3", "--steps", "0.5,5%, 50", "--samples", "20", "--seconds", "1.5")
    assert (status, remark) == (0, "watch it with `tidegate rollouts watch r`\n")
    assert lines[1] == ["r", "v1", "v2@3", "canary", "1", "of", "3", "0.5", "%", "0", "of", "20", "no", "requests"]
    rollout = stored(bench)
    assert [(step.weight, step.samples, step.min_s) for step in rollout.steps] == [(50, 20, 1.5), (500, 20, 1.5), (5000, 20, 1.5)]
    assert (rollout.model, rollout.version, rollout.slower_by, rollout.alpha) == ("v2", "3", 1.1, 0.01)


def test_blue_green_is_one_step_that_leaves_something_to_compare_with(bench: Bench, where: tuple[str, str]) -> None:
    assert rollouts(where, "start", "r", "--to", "v2", "--blue-green")[0] == 0
    assert [step.weight for step in stored(bench).steps] == [9900]


@pytest.mark.parametrize("steps", ["5,x", "150", "0", "5,,50", "100"])
def test_wrong_steps_are_shown_with_what_is_right(where: tuple[str, str], steps: str) -> None:
    status, _, remark = rollouts(where, "start", "r", "--to", "v2", "--steps", steps)
    told = " ".join(remark.replace("│", " ").split())
    assert (status, f"'{steps}' is not a list of percents from 0.01 to 99.99" in told) == (2, True)


def test_blue_green_and_steps_exclude_each_other(where: tuple[str, str]) -> None:
    status, _, remark = rollouts(where, "start", "r", "--to", "v2", "--blue-green", "--steps", "5")
    assert (status, remark) == (1, "error: --blue-green is one step of its own: leave it out, or --steps\n")


def test_a_policy_has_the_steps_unless_options_do(bench: Bench, where: tuple[str, str]) -> None:
    steps = [{"weight": 200, "samples": 7, "min_s": 0.0, "name": "few"}, {"weight": 5000, "samples": 8, "min_s": 3.0, "name": ""}]
    policy = RolloutPolicy("careful", tuple(Step(**step) for step in steps), GatePolicy(slower_by=3.0))  # type: ignore[arg-type]
    run(bench.store.put(Kind.ROLLOUT_POLICY, "careful", to_body(policy)))
    status, lines, _ = rollouts(where, "start", "r", "--to", "v2", "--policy", "careful")
    assert (status, lines[1][4:8]) == (0, ["few,", "1", "of", "2"])
    assert (stored(bench).steps, stored(bench).slower_by) == (policy.steps, 3.0)
    assert rollouts(where, "abort", "r")[0] == 0
    status, _, refused = rollouts(where, "start", "r", "--to", "v2", "--policy", "careful", "--samples", "9")
    assert (status, "or give --steps" in refused) == (1, True)
    assert rollouts(where, "start", "r", "--to", "v2", "--policy", "careful", "--steps", "9", "--alpha", "0.02")[0] == 0
    assert ([step.weight for step in stored(bench).steps], stored(bench).slower_by, stored(bench).alpha) == ([900], 3.0, 0.02)
    assert rollouts(where, "start", "r", "--to", "v2", "--policy", "nope")[2].startswith("error: no rollout policy 'nope'")


def test_by_hand(bench: Bench, where: tuple[str, str]) -> None:
    rollouts(where, "start", "r", "--to", "v2")
    assert rollouts(where, "pause", "r")[1][1][3:5] == ["canary,", "paused"]
    assert rollouts(where, "resume", "r")[1][1][3:5] == ["canary", "1"]
    assert rollouts(where, "abort", "r")[1][1][3] == "aborted"
    status, lines, remark = rollouts(where, "promote", "r")
    assert (status, lines, "cannot be promoted, it is aborted: by hand" in remark) == (1, [], True)
    whats = [" ".join(line[4:-1]) for line in rollouts(where, "history", "r")[1][1:]]
    whats[0] = whats[0].partition(",")[0]
    assert whats == ["began: v1 -> v2", "paused", "resumed", "aborted: by hand"]
    assert {line[-1].split("/")[0] for line in rollouts(where, "history", "r")[1][1:]} == {"acme"}, "the tenant and the key of who did it"


@pytest.mark.parametrize(("phase", "status"), [(Phase.PROMOTED, 0), (Phase.ROLLED_BACK, 1), (Phase.ABORTED, 1)])
def test_watch_ends_with_the_rollout_and_says_how_by_its_status(bench: Bench, where: tuple[str, str], phase: Phase, status: int) -> None:
    rollouts(where, "start", "r", "--to", "v2")
    bench.store.state.write(Kind.ROLLOUT, "r", to_body(replace(stored(bench), phase=phase, reason="why")))
    ended, lines, remark = rollouts(where, "watch", "r")
    assert (ended, "1 %: began: v1 -> v2" in remark, lines[1][3].split("_")[0]) == (status, True, phase.split("_")[0])


def test_status_shows_all_or_one_with_its_gates(bench: Bench, where: tuple[str, str]) -> None:
    rollouts(where, "start", "r", "--to", "v2")
    assert [line[0] for line in rollouts(where, "status")[1]] == ["route", "r"]
    assert [line[0] for line in rollouts(where, "status", "r")[1]][:2] == ["route", "r"]
    status, _, remark = rollouts(where, "status", "s")
    assert (status, "no rollout 's'" in remark) == (1, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--to", "v1"), "has model 'v1' already"),
        (("--to", "v2", "--steps", "5,1"), "must rise"),
        (("--to", "v2", "--steps", "few"), "few"),
        (("--to", "v2", "--alpha", "1"), "alpha"),
        ((), "--to"),
    ],
)
def test_what_cannot_begin(where: tuple[str, str], options: tuple[str, ...], said: str) -> None:
    status, lines, remark = rollouts(where, "start", "r", *options)
    assert status != 0
    assert lines == []
    assert said in remark


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize("option", ["--seconds", "--shadow-percent", "--may-differ", "--bake", "--slower-by", "--alpha"])
def test_what_is_no_finite_number_is_refused_by_its_option(tidegate: Tidegate, option: str, number: str) -> None:
    ended = tidegate("rollouts", "start", "r", "--to", "v2", "--agreement", "exact", option, number, "--admin-url", "http://127.0.0.1:1")
    assert (ended.status, f"Invalid value for '{option}'" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("phase", "of"), [(Phase.SHADOW, "200"), (Phase.CANARY, "20"), (Phase.BAKING, "20"), (Phase.PROMOTING, "20")], ids=str
)
def test_top_shows_a_rollout_in_each_phase_of_its_way(bench: Bench, where: tuple[str, str], phase: Phase, of: str) -> None:
    steps, shadow = (Step(100, 20, 1.0),), Step(1000, 200, 1.0)
    run(bench.store.put(Kind.ROLLOUT, "r", to_body(Rollout("r", "0" * 32, "v2", "v1", steps, phase=phase, shadow=shadow))))
    ended = run_cli("top", "--once", "--admin-url", where[0], env={"TIDEGATE_API_KEY": where[1]})
    (line,) = [line.split() for line in ended.stdout.splitlines() if line.split()[:2] == ["r", "v2"]]
    assert (line[2], line[-3:]) == (phase, ["0", "of", of])


def test_watch_goes_on_where_the_gateway_or_its_store_was_restarted(tidegate: Tidegate) -> None:
    step = {"weight": 100, "samples": 20, "min_s": 1.0, "name": ""}
    models: dict[str, Any] = {"model": "v2", "version": "", "stable": "v1", "stable_version": ""}
    place: dict[str, Any] = {"route": "r", "phase": "canary", "step": 0, "steps": [step], "shadow": None, "weight": 100, "entered_s": 0.0}
    seen = {**models, **place, "is_paused": False, "reason": "", "gates": [], "events": [], "step_samples": 0, "left_s": None, "doubt": ""}
    away = {"error": "the store is away", "code": "store_unavailable", "retryable": True}
    held = {**seen, "doubt": "faults: 9 of 9 requests"}
    answers: list[dict[str, Any] | None] = [seen, None, away, held, held, {**seen, "phase": "promoted"}]

    def answer(asked: AskedRequest) -> None:
        if (found := answers.pop(0)) is not None:  # else the connection ends
            asked.answer(503 if found is away else 200, found)

    with http_server(answer) as url:
        ended = tidegate("rollouts", "watch", "r", "--admin-url", url)
    assert (ended.status, answers, ended.err.count("asking again")) == (0, [], 1)
    assert ended.err.count("it holds at its step: faults: 9 of 9 requests; promote or abort it, or wait") == 1
