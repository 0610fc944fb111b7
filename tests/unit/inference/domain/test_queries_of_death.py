from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from control_plane.inference.domain.queries_of_death import REMEMBERED_S, Record, StubDeaths, Suspects, Verdict

A, B = ("m", b"a"), ("m", b"b")


def test_two_deaths_of_a_suspect_make_it_guilty_for_a_minute() -> None:
    known = Suspects()
    assert not known.watches("m", 0.0)
    assert known.died(A, "s0", 0.0, was_suspect=False).verdict is Verdict.SUSPECT
    assert known.watches("m", 1.0)
    assert known.record(B, 1.0) is None
    record = known.died(A, "s1", 10.0, was_suspect=True)
    assert (record.verdict, record.deaths) == (Verdict.GUILTY, ("s0", "s1"))
    assert known.record(A, 10.0 + REMEMBERED_S - 0.1) == record
    assert known.record(A, 10.0 + REMEMBERED_S) is None
    assert not known.watches("m", 10.0 + REMEMBERED_S)


def test_servers_that_die_at_once_blame_nobody() -> None:
    known = Suspects()
    for server in ("s0", "s1", "s2"):
        assert known.died(A, server, 0.0, was_suspect=False).verdict is Verdict.SUSPECT


def test_an_answer_clears_a_suspect() -> None:
    known = Suspects()
    known.died(A, "s0", 0.0, was_suspect=False)
    known.answered(A)
    assert known.record(A, 0.0) is None
    assert known.died(A, "s1", 1.0, was_suspect=False).verdict is Verdict.SUSPECT


def test_no_answer_clears_a_guilty_one() -> None:
    known = Suspects()
    known.died(A, "s0", 0.0, was_suspect=False)
    guilty = known.died(A, "s1", 1.0, was_suspect=True)
    known.answered(A)
    assert known.record(A, 2.0) == guilty


class TestWhatOthersFoundOut:
    SUSPECT = Record(("s0",), 60.0, Verdict.SUSPECT)
    GUILTY = Record(("s0", "s1"), 70.0, Verdict.GUILTY)

    def test_is_believed_until_it_expires(self) -> None:
        known = Suspects()
        known.learn(A, self.GUILTY, 10.0)
        assert known.watches("m", 69.9)
        assert known.record(A, 69.9) == self.GUILTY
        assert known.guilty(69.9) == {A: self.GUILTY}
        assert known.guilty(70.0) == {}
        assert known.record(A, 70.0) is None
        known.learn(B, self.GUILTY, 70.0)
        assert known.record(B, 70.0) is None

    def test_makes_a_suspect_guilty_and_never_a_guilty_one_innocent(self) -> None:
        known = Suspects()
        known.learn(A, self.SUSPECT, 0.0)
        assert known.record(A, 0.0) == self.SUSPECT
        assert known.guilty(0.0) == {}
        known.learn(A, self.GUILTY, 1.0)
        known.learn(A, self.SUSPECT, 2.0)
        known.learn(A, None, 3.0)
        assert known.record(A, 4.0) == self.GUILTY

    def test_clears_a_suspect(self) -> None:
        known = Suspects()
        known.died(A, "s0", 0.0, was_suspect=False)
        known.learn(A, None, 1.0)
        assert known.record(A, 1.0) is None

    def test_is_the_second_death_of_what_died_there_first(self) -> None:
        known = Suspects()
        known.learn(A, self.SUSPECT, 0.0)
        assert known.died(A, "s1", 1.0, was_suspect=True).deaths == ("s0", "s1")

    def test_cannot_fill_the_list(self) -> None:
        known = Suspects()
        for number in range(5000):
            known.learn(("m", number.to_bytes(4)), self.GUILTY, 0.0)
        assert len(known.guilty(0.0)) == 4096


@given(digests=st.lists(st.integers(0, 20_000), max_size=10_000))
def test_callers_cannot_fill_the_list(digests: list[int]) -> None:
    known = Suspects()
    for number in digests:
        known.died(("m", number.to_bytes(4)), "s0", 0.0, was_suspect=False)
    assert sum(known.record(("m", number.to_bytes(4)), 0.0) is not None for number in range(20_001)) <= 4096


def test_a_stubs_death_is_told_of_those_that_it_was_computing() -> None:
    deaths, copy = StubDeaths(), object()
    assert deaths.was_in_flight("s0", "m", copy, began_s=0.0, now_s=2.0)
    assert deaths.was_in_flight("s0", "m", copy, began_s=0.5, now_s=2.1), "of the same batch"
    assert not deaths.was_in_flight("s0", "m", copy, began_s=1.5, now_s=3.0), "it waited behind"
    assert not deaths.was_in_flight("s0", "m", copy, began_s=2.2, now_s=3.2), "it came to the dead stub"
    assert deaths.was_in_flight("s0", "m", object(), began_s=3.0, now_s=4.0), "another copy"
    assert deaths.was_in_flight("s1", "m", copy, began_s=3.0, now_s=4.0), "another server"


def test_a_stub_that_was_revived_may_die_again() -> None:
    deaths, copy = StubDeaths(), object()
    assert deaths.was_in_flight("s0", "m", copy, began_s=0.0, now_s=1.0)
    assert deaths.was_in_flight("s0", "m", copy, began_s=7.0, now_s=8.0)
