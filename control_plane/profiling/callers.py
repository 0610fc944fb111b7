"""Callers of a closed loop: each sends its next request when the last one is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import TypeVar

CallerT = TypeVar("CallerT")
AskedT = TypeVar("AskedT")


def ask_all(callers: Sequence[CallerT], requests: Iterable[bytes], ask: Callable[[CallerT, bytes], AskedT]) -> list[AskedT]:
    """Have all callers ask at once until no request is left, and return what `ask` has of each request, in no order.

    A request is made when its turn comes. The first error ends all, once those under way are answered; it is raised.
    """
    shared, ended, ends = _Shared(iter(requests)), Event(), SimpleQueue[list[AskedT] | BaseException]()

    def loop(caller: CallerT) -> None:
        found = []
        try:
            while not ended.is_set() and (request := shared.next()) is not None:
                found.append(ask(caller, request))
        except BaseException as exc:
            ended.set()
            ends.put(exc)
        else:
            ends.put(found)

    for each in callers:  # daemons: Ctrl-C waits for no gateway that says nothing
        Thread(target=loop, args=(each,), daemon=True).start()
    try:
        loops = [ends.get() for _ in callers]
    finally:
        ended.set()
    asked = list[AskedT]()
    for end in loops:
        if isinstance(end, BaseException):
            raise end
        asked += end
    return asked


class _Shared:
    """Iterator that several threads share."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self._lock = Lock()

    def next(self) -> bytes | None:
        with self._lock:
            return next(self._requests, None)
