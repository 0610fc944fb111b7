from __future__ import annotations

from control_plane.core.fingerprint import Fingerprint
from control_plane.models.fingerprints import Fingerprints
from control_plane.triton.servers import Servers
from tests.aio import run
from tests.fakes import FakeUpstream

A, B = Fingerprint(b"a" * 32, True), Fingerprint(b"b" * 32, False)


def test_are_what_was_said_last() -> None:
    known = Fingerprints()
    known.change({"x": A, "y": B})
    run(known.publish({"x": B, "y": None, "z": None}))
    assert (known.get("x"), known.get("y"), known.get("z")) == (B, None, None)
    assert known.all() == {"x": B}
    assert (known.latest("x"), known.latest("y"), known.latest("z")) == (B, B, None)


def test_what_was_known_last_says_nothing_once_it_has_long_been_unknown() -> None:
    now_s = [0.0]
    known = Fingerprints(now_s=lambda: now_s[0])
    known.change({"x": A, "y": A, "z": A})
    known.change({"x": None})
    known.forget_all()
    known.change({"z": B})
    now_s[0] = 299.0
    known.change({"x": None})
    assert (known.latest("x"), known.latest("y"), known.latest("z")) == (A, A, B)
    now_s[0] = 300.0
    assert (known.latest("x"), known.latest("y"), known.latest("z")) == (None, None, B)
    known.rely_until(310.0)
    now_s[0] = 610.0
    assert known.latest("z") is None
    known.rely_until(700.0)
    assert known.latest("z") is B


def test_end_with_triton_and_are_not_lost_when_one_is_up() -> None:
    known = Fingerprints()
    servers = Servers(known)
    known.change({"x": A})
    servers.up(FakeUpstream())
    assert known.get("x") is A
    servers.down("Triton has ended")
    assert known.get("x") is None


def test_what_is_relied_on_until_a_time_is_unknown_from_then_on() -> None:
    now_s = [0.0]
    known, found = Fingerprints(now_s=lambda: now_s[0]), Fingerprint(b"", True)
    known.change({"m": found})
    known.rely_until(1.0)
    assert known.get("m") is found
    assert known.generation == known.generation
    now_s[0] = 1.0
    assert known.get("m") is None
    assert known.generation != known.generation, "no answer that was cached by one is found by the other"
    known.rely_until(2.0)
    assert known.get("m") is found
