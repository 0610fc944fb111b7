"""Callers that ask at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from control_plane.core.errors import UpstreamUnavailable
from control_plane.profiling.callers import ask_all


def test_each_request_is_sent_once() -> None:
    asked = ask_all("abc", (b"%d" % number for number in range(50)), lambda caller, request: (caller, request))
    assert sorted(request for _, request in asked) == sorted(b"%d" % number for number in range(50))


def test_all_callers_ask_at_once() -> None:
    together = threading.Barrier(3)

    def ask(caller: str, request: bytes) -> str:
        together.wait()  # passes when three wait
        return caller

    assert sorted(ask_all("abc", [b""] * 3, ask)) == ["a", "b", "c"]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests were started in a way that has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_for_no_gateway_that_says_nothing() -> None:
    answers, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def ask(caller: str, request: bytes) -> None:
        if caller == "b":
            signal.pthread_kill(main, signal.SIGINT)
        answers.wait()

    with pytest.raises(KeyboardInterrupt):
        ask_all("ab", [b""] * 2, ask)
    answers.set()


def test_the_first_error_ends_all_and_is_raised() -> None:
    others, requests = threading.Event(), iter([b""] * 100_000)

    def ask(caller: str, request: bytes) -> None:
        if caller == "a":
            others.wait()
            raise UpstreamUnavailable("gone")
        others.set()

    with pytest.raises(UpstreamUnavailable, match="gone"):
        ask_all("abc", requests, ask)
    assert next(requests, None) is not None


def test_a_request_that_cannot_be_made_is_an_error_of_all() -> None:
    def requests() -> object:
        yield b"1"
        raise UpstreamUnavailable("none")

    with pytest.raises(UpstreamUnavailable, match="none"):
        ask_all("ab", requests(), lambda caller, request: None)  # type: ignore[arg-type]
