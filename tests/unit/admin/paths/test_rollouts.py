from __future__ import annotations

import json
from typing import Any

import pytest

from control_plane.objects.domain.route import Route
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from tests.aio import run
from tests.unit.admin.admin_bench import Bench

START = {"model": "v2", "steps": [{"weight": 100, "samples": 20, "min_s": 1.5}, {"weight": 5000}]}


def triton(request: HttpRequest) -> HttpAnswer:
    is_known = request.target.split(b"/")[3] in (b"v1", b"v2")
    return make_answer(200, json.dumps({"output": [], "versions": ["1", "2", "3"]}).encode()) if is_known else make_answer(404, b"{}")


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.upstream.http.answer = triton
    run(bench.store.put(Kind.ROUTE, "r", to_body(Route("r", "v1"))))
    return bench


def test_from_the_beginning_to_the_end(bench: Bench) -> None:
    status, begun = bench.ask("POST", "/rollouts/r", body=START)
    assert status == 201
    shown = {name: begun[name] for name in ("route", "model", "stable", "phase", "step", "weight", "is_paused", "reason", "step_samples")}
    assert shown == {
        "route": "r",
        "model": "v2",
        "stable": "v1",
        "phase": "canary",
        "step": 0,
        "weight": 100,
        "is_paused": False,
        "reason": "",
        "step_samples": 0,
    }
    assert begun["steps"] == [
        {"weight": 100, "samples": 20, "min_s": 1.5, "name": ""},
        {"weight": 5000, "samples": 500, "min_s": 60.0, "name": ""},
    ]
    assert [(event["what"], event["weight"], event["by"]) for event in begun["events"]] == [
        (
            "began: v1 -> v2, without a shadow: nobody says that its requests may be computed twice: `tidegate routes set r --repeatable`",
            100,
            "anonymous at 127.0.0.1",
        )
    ]
    assert "token" not in begun
    assert bench.ask("GET", "/rollouts/r") == (200, begun)
    assert bench.ask("GET", "/rollouts") == (200, [begun])
    for verb, phase, is_paused in (("pause", "canary", True), ("resume", "canary", False), ("abort", "aborted", False)):
        status, changed = bench.ask("POST", f"/rollouts/r/{verb}")
        assert (status, changed["phase"], changed["is_paused"]) == (200, phase, is_paused)
    status, refused = bench.ask("POST", "/rollouts/r/promote")
    assert (status, refused["error"]) == (409, "the rollout of 'r' cannot be promoted, it is aborted: by hand")
    assert bench.ask("POST", "/rollouts/r", body=START)[0] == 201
    status, promoted = bench.ask("POST", "/rollouts/r/promote")
    assert (status, promoted["phase"], promoted["weight"]) == (200, "promoting", 10_000)


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/rollouts/s", START, 404, "no route 's'"),
        ("/rollouts/r", START | {"model": "v9"}, 404, "'v9' is not loaded"),
        ("/rollouts/r", START | {"model": "v1", "version": "2"}, 400, "another one than the route's own"),
        ("/rollouts/r", START | {"steps": []}, 400, "steps"),
        ("/rollouts/r", START | {"steps": [{"weight": 10_000}]}, 400, "weight"),
        ("/rollouts/r", START | {"steps": [{"weight": 10}, {"weight": 5}]}, 400, "must rise"),
        ("/rollouts/r", START | {"alpha": 1}, 400, "alpha"),
        ("/rollouts/r", START | {"slower_by": 0.5}, 400, "slower_by"),
        ("/rollouts/r", START | {"speed": 1}, 400, "speed"),
        ("/rollouts/r", {"model": "v2"}, 400, "needs steps, or a policy"),
        ("/rollouts/r", {"model": "v2", "policy": "nope"}, 404, "no rollout policy 'nope'"),
        ("/rollouts/r/pause", None, 404, "no rollout 'r'"),
        ("/rollouts/r/stop", None, 400, "verb"),
    ],
)
def test_what_cannot_be_is_refused_and_named(bench: Bench, path: str, body: dict[str, Any] | None, status: int, says: str) -> None:
    got, refused = bench.ask("POST", path, body=body)
    assert (got, says in refused["error"]) == (status, True), refused


def test_a_rollout_that_is_not_there(bench: Bench) -> None:
    assert bench.ask("GET", "/rollouts/r")[0] == 404


POLICY = {
    "steps": [{"weight": 500, "samples": 20, "min_s": 1.5, "name": "few"}, {"weight": 5000, "samples": 9, "min_s": 0.0, "name": "half"}],
    "gates": {"slower_by": 2.0, "alpha": 0.05},
}


class TestByPolicy:
    def test_the_rollout_is_begun_as_the_policy_says_and_keeps_to_it(self, bench: Bench) -> None:
        assert bench.ask("PATCH", "/objects/RolloutPolicy/careful", body=POLICY)[0] == 200
        status, begun = bench.ask("POST", "/rollouts/r", body={"model": "v2", "policy": "careful"})
        assert (status, begun["steps"], begun["slower_by"], begun["alpha"]) == (201, POLICY["steps"], 2.0, 0.05)
        assert bench.ask("PATCH", "/objects/RolloutPolicy/careful", body={"steps": [{"weight": 1}]})[0] == 200
        assert bench.ask("GET", "/rollouts/r")[1]["steps"] == POLICY["steps"], "a rollout that is under way does not change"
        started = next(entry.change.after for entry in bench.audit.entries if entry.change.action == "start")
        assert started is not None
        assert started["policy"] == "careful"
        assert [step["name"] for step in started["steps"]] == ["few", "half"], "the log says what was begun, not only by which name"

    def test_what_is_given_beside_it_counts_more(self, bench: Bench) -> None:
        bench.ask("PATCH", "/objects/RolloutPolicy/careful", body=POLICY)
        given = {"model": "v2", "policy": "careful", "steps": [{"weight": 7}], "alpha": 0.02}
        begun = bench.ask("POST", "/rollouts/r", body=given)[1]
        assert ([step["weight"] for step in begun["steps"]], begun["slower_by"], begun["alpha"]) == ([7], 2.0, 0.02)

    def test_an_agreement_that_there_is_none_of_begins_nothing(self, bench: Bench) -> None:
        assert bench.ask("PATCH", "/objects/RolloutPolicy/careful", body=POLICY | {"gates": {"agreement": "telepathy"}})[0] == 200
        status, refused = bench.ask("POST", "/rollouts/r", body={"model": "v2", "policy": "careful"})
        assert (status, "there is no agreement 'telepathy'; there are exact, " in refused["error"]) == (400, True)
        assert bench.ask("GET", "/rollouts/r")[0] == 404

    def test_its_agreement_and_bake_are_the_rollouts_unless_that_says_otherwise(self, bench: Bench) -> None:
        run(bench.store.put(Kind.ROUTE, "r", to_body(Route("r", "v1", is_repeatable=True))))
        bench.ask("PATCH", "/objects/RolloutPolicy/careful", body=POLICY | {"gates": {"agreement": "same-space"}, "bake_s": 60})
        _, begun = bench.ask("POST", "/rollouts/r", body={"model": "v2", "policy": "careful"})
        assert (begun["phase"], begun["bake_s"]) == ("shadow", 60.0)
        assert begun["agreement"] == {"kind": "same-space", "output": "", "limit": 0.99, "may_differ": 0.01}
        bench.ask("POST", "/rollouts/r/abort")
        _, other = bench.ask("POST", "/rollouts/r", body={"model": "v2", "policy": "careful", "bake_s": 0, "agreement": {"kind": "exact"}})
        assert (other["bake_s"], other["agreement"]["kind"]) == (0.0, "exact")
