"""The order in which suspects are sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from control_plane.inference.domain.suspect_lanes import SuspectLanes


def after(*deaths: bool) -> SuspectLanes[str]:
    lanes = SuspectLanes[str]()
    for is_stub in deaths:
        lanes.died("m", 0.0, is_stub=is_stub)
    return lanes


def asked(lanes: SuspectLanes[str], keys: str, now_s: float = 1.0, *, model: str = "m") -> str:
    return "".join(key for key in keys if lanes.ask(model, key, now_s))


def ended(lanes: SuspectLanes[str], keys: str, *, was_answered: bool = True) -> str:
    return "".join(following for key in keys for following in lanes.end(key, was_answered=was_answered))


def test_after_a_stubs_death_they_go_one_at_a_time() -> None:
    lanes = after(True)
    assert asked(lanes, "abc") == "a"
    assert ended(lanes, "a") == "b"
    assert asked(lanes, "d") == "", "c is before it"
    assert ended(lanes, "b", was_answered=False) == "c"
    assert ended(lanes, "c") == "d"


def test_after_a_servers_death_each_answer_lets_one_more_through() -> None:
    lanes = after(False)
    assert asked(lanes, "abcdefgh") == "a"
    assert ended(lanes, "a") == "bc"
    assert ended(lanes, "b", was_answered=False) == "d"
    assert ended(lanes, "cd") == "efgh"


def test_where_it_turns_out_that_stubs_die_they_go_one_at_a_time_from_then_on() -> None:
    lanes = after(False)
    asked(lanes, "abcde")
    assert ended(lanes, "a") == "bc"
    lanes.died("m", 1.0, is_stub=True)
    assert ended(lanes, "b") == "", "c is being sent"
    assert ended(lanes, "c") == "d"


def test_another_death_later_makes_it_narrow_again_and_keeps_who_waits() -> None:
    lanes = after(False)
    asked(lanes, "abcdefgh")
    assert ended(lanes, "abc") == "bcdefg"
    lanes.died("m", 30.0, is_stub=False)
    assert ended(lanes, "defg", was_answered=False) == "h"


def test_who_waits_no_longer_is_passed_over_and_another_model_has_its_own() -> None:
    lanes = after(True)
    assert asked(lanes, "abc") == "a"
    assert asked(lanes, "x", model="n") == "x"
    assert ended(lanes, "b?") == ""
    assert ended(lanes, "a") == "c"


@given(
    st.lists(st.tuples(st.sampled_from(["ask", "answered", "failed", "stub", "server"]), st.integers(0, 7), st.floats(0, 30)), max_size=60)
)
def test_all_get_their_turn_and_after_a_stubs_death_one_at_a_time(steps: list[tuple[str, int, float]]) -> None:
    lanes, now_s, out, waiting, seen = SuspectLanes[int](), 0.0, set[int](), set[int](), 0
    for what, which, pause_s in steps:
        now_s += pause_s
        match what:
            case "ask":
                seen += 1
                (out if lanes.ask("m", seen, now_s) else waiting).add(seen)
            case "stub" | "server":
                lanes.died("m", now_s, is_stub=what == "stub")
            case _ if out | waiting:
                key = sorted(out | waiting)[which % len(out | waiting)]
                out.discard(key)
                waiting.discard(key)
                given_now = set(lanes.end(key, was_answered=what == "answered"))
                assert given_now <= waiting
                waiting -= given_now
                out |= given_now
        assert not waiting or out, "somebody's turn comes"
    while out:
        key = out.pop()
        given_now = set(lanes.end(key))
        waiting -= given_now
        out |= given_now
    assert not waiting
