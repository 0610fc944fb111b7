"""Answers on their way: sent in order beside the next step, and no request's trouble is another's."""

from __future__ import annotations

import threading

from python_backends.runtime.errors import BackendError, ExecutionError
from python_backends.text_generator.generated_sequence import Written
from python_backends.text_generator.outbox import LOOKS, Outbox

WAIT_S = 30.0


class Sending:
    def __init__(self, *, is_broken: bool = False) -> None:
        self.sent: list[Written | BackendError] = []
        self.ended = threading.Event()
        self.looks = 0
        self.has_left = False
        self._is_broken = is_broken

    def send(self, part: Written | BackendError, *, is_last: bool) -> None:
        if self._is_broken:
            raise OSError("shared memory is full")
        self.sent.append(part)
        if is_last:
            self.ended.set()

    def is_cancelled(self) -> bool:
        self.looks += 1
        return self.has_left


def test_parts_go_out_after_the_step_in_order() -> None:
    outbox, sending = Outbox(), Sending()
    outgoing = outbox.opened(sending)
    parts = [Written("a", 1), Written("b", 1), Written("", 1, "stop")]
    for part in parts:
        outgoing.take(part)
        outbox.after_step()

    assert sending.ended.wait(WAIT_S)
    outbox.close()
    assert sending.sent == parts


def test_a_request_whose_parts_cannot_be_sent_is_given_up_alone() -> None:
    outbox, broken, fine = Outbox(), Sending(is_broken=True), Sending()
    first, second = outbox.opened(broken), outbox.opened(fine)
    first.take(Written("a", 1))
    second.fail(ExecutionError("it failed"))
    outbox.after_step()
    outbox.close()

    assert first.is_gone
    assert not second.is_gone
    assert [str(part) for part in fine.sent] == ["it failed"]


def test_who_has_left_is_known_after_one_step_and_nobody_is_asked_once_answered() -> None:
    outbox, leaving, answered = Outbox(), Sending(), Sending()
    gone, over = outbox.opened(leaving), outbox.opened(answered)
    leaving.has_left = True
    over.take(Written("", 0, "stop"))
    outbox.after_step()
    outbox.close()

    assert (gone.is_gone, over.is_gone, answered.looks) == (True, False, 0)


def test_a_crowd_is_asked_in_turns() -> None:
    outbox, crowd = Outbox(), [Sending() for _ in range(2 * LOOKS)]
    for sending in crowd:
        outbox.opened(sending)
    for _ in range(2):
        outbox.after_step()
    outbox.close()

    assert [sending.looks for sending in crowd] == [1] * len(crowd)
