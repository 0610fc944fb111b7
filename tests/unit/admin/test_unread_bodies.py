from __future__ import annotations

import pytest

from control_plane.core.model import ModelState
from tests.unit.admin.admin_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/models/b/load", {"parameters": {"config": "{}"}}),
        ("POST", "/models/b/load", {"evrywhere": True}),
        ("POST", "/models/a/unload", b"unload_dependents"),
        ("POST", "/models/a/release", []),
        ("DELETE", "/cache/a", {"model": "a"}),
        ("POST", "/rollouts/r/pause", {"reason": "noon"}),
    ],
)
def test_a_body_that_a_call_does_not_read_is_refused(bench: Bench, method: str, path: str, body: object) -> None:
    status, answer = bench.ask(method, path, body=body)
    assert (status, answer["code"]) == (400, "invalid_argument")
    assert "takes no body" in answer["error"]
    assert bench.upstream.control.loads == []
    assert bench.upstream.control.states["a"] is ModelState.READY


def test_what_a_load_takes_is_named(bench: Bench) -> None:
    said = bench.ask("POST", "/models/b/load", body={"everywhere": True})[1]["error"]
    assert said == "this call takes no body, leave it out; what it takes is in the query: everywhere"


@pytest.mark.parametrize("body", [{}, b"", b" {} \n"])
def test_a_body_that_says_nothing_does_no_harm(bench: Bench, body: object) -> None:
    assert bench.ask("POST", "/models/b/load", body=body)[0] == 200
