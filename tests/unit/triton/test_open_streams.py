"""Streamed responses as signs that a model computes."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.triton.open_streams import HeldStream, OpenStreams
from tests.fakes import FakeHttpStream


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_one_goes_on_while_something_has_come_lately() -> None:
    clock, stream = Clock(), FakeHttpStream()
    streams = OpenStreams(clock)
    streams.add("s0", "a", stream)
    assert not streams.go_on("s0", "a"), "nothing has come yet"
    stream.heard_s = 95.0
    assert streams.go_on("s0", "a")
    assert list(streams.going_on()) == [("s0", "a")]
    assert not streams.go_on("s0", "b")
    assert not streams.go_on("s1", "a")
    clock.now_s = 106.0
    assert not streams.go_on("s0", "a")
    assert not list(streams.going_on())


def test_of_several_one_is_enough_and_none_is_remembered() -> None:
    clock = Clock()
    streams = OpenStreams(clock)
    first, second = FakeHttpStream(heard_s=0.0), FakeHttpStream(heard_s=99.0)
    forget_first, forget_second = streams.add("s0", "a", first), streams.add("s0", "a", second)
    assert streams.go_on("s0", "a")
    forget_second()
    forget_second()
    assert not streams.go_on("s0", "a")
    first.heard_s = 100.0
    assert streams.go_on("s0", "a")
    forget_first()
    assert not streams.go_on("s0", "a")


def test_what_is_to_be_done_once_it_is_closed_is_done_once() -> None:
    done, stream = list[str](), FakeHttpStream()
    held = HeldStream(stream, lambda: done.append("first"), lambda: done.append("second"))
    assert (held.status, held.head) == (stream.status, stream.head)
    assert not done
    held.close()
    held.close()
    assert stream.closed.is_set()
    assert done == ["first", "second"]
