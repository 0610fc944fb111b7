from __future__ import annotations

import pytest

from control_plane.frontends.grpc.call_stalls import CallStalls

MESSAGE_BYTES = 1600


def sending(received: list[int], *, may_send: bool = True) -> float:
    """For how long a client is stalled that had sent so much at each second."""
    stalls, stalled_s = CallStalls(), 0.0
    for now_s, received_bytes in enumerate(received):
        stalled_s = stalls.stalled_sending_s(now_s, received_bytes=received_bytes, message_bytes=MESSAGE_BYTES, may_send=may_send)
    return stalled_s


def reading(unsent: list[int], messages: list[int] | None = None) -> float:
    """For how long a client is stalled for whom so much waited at each second, after so many messages."""
    stalls, stalled_s = CallStalls(), 0.0
    for now_s, (unsent_bytes, sent) in enumerate(zip(unsent, messages or [0] * len(unsent), strict=True)):
        stalled_s = stalls.stalled_reading_s(now_s, unsent_bytes=unsent_bytes, sent_messages=sent)
    return stalled_s


@pytest.mark.parametrize(
    ("received", "stalled_s"),
    [
        pytest.param([10, 10, 10], 2.0, id="nothing comes"),
        pytest.param([10, 11, 12], 2.0, id="a byte at a time"),
        pytest.param([0, 100, 200], 0.0, id="a sixteenth at a time"),
        pytest.param([0, 100, 100], 1.0, id="nothing any more"),
    ],
)
def test_who_sends_less_than_a_sixteenth_is_stalled(received: list[int], stalled_s: float) -> None:
    assert sending(received) == stalled_s


def test_who_may_not_send_is_not_stalled() -> None:
    assert sending([10, 10, 10], may_send=False) == 0.0


@pytest.mark.parametrize(
    ("unsent", "stalled_s"),
    [
        pytest.param([0, 0, 0], 0.0, id="nothing waits"),
        pytest.param([1600, 1600, 1600], 2.0, id="nothing is read"),
        pytest.param([1600, 1599, 1598], 2.0, id="a byte at a time"),
        pytest.param([1600, 1500, 1400], 0.0, id="a sixteenth at a time"),
        pytest.param([1600, 1550, 1500], 0.0, id="a sixteenth in two steps"),
        pytest.param([1600, 1600, 0], 0.0, id="all at last"),
        pytest.param([1600, 1600, 3200], 0.0, id="more waits"),
    ],
)
def test_who_reads_less_than_a_sixteenth_is_stalled(unsent: list[int], stalled_s: float) -> None:
    assert reading(unsent) == stalled_s


def test_who_got_another_message_is_not_stalled() -> None:
    assert reading([1600, 1600, 1600], [1, 2, 3]) == 0.0
    assert reading([1600, 1600, 1600], [1, 1, 1]) == 2.0
