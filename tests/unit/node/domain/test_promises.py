from __future__ import annotations

from control_plane.node.domain.promises import HELD_S, PING_EVERY_S, VALID_S, Promises


def test_a_node_waits_longer_than_a_gateway_relies_on_it() -> None:
    assert HELD_S >= 1.5 * VALID_S > 2 * PING_EVERY_S


def test_what_a_run_before_has_promised_is_waited_for() -> None:
    promises = Promises(100.0)
    assert promises.longest_s(100.0) == HELD_S
    assert promises.longest_s(100.0 + HELD_S) == 0.0


def test_each_gateway_has_a_promise_of_its_own() -> None:
    promises = Promises(-HELD_S)
    promises.made("a", 10.0)
    promises.made("b", 11.0)
    assert promises.left_s("a", 11.0) == HELD_S - 1
    assert promises.left_s("c", 11.0) == 0.0
    assert promises.longest_s(11.0) == HELD_S
    assert promises.longest_s(11.0, but=frozenset({"b"})) == HELD_S - 1
    promises.released("b")
    assert promises.longest_s(11.0) == HELD_S - 1
    assert promises.longest_s(10.0 + HELD_S) == 0.0


def test_nothing_is_kept_of_gateways_that_come_and_go_while_nothing_changes() -> None:
    promises = Promises(0.0)
    for number in range(100):
        promises.made(object(), 10.0 * number)
    assert len(promises._until_s) == 1
