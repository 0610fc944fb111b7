"""Callers of a closed loop: each sends its next request when the last one is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import TypeVar

CallerT = TypeVar("CallerT")
AskedT = TypeVar("AskedT")


def ask_all(callers: Sequence[CallerT], requests: Iterable[bytes], ask: Callable[[CallerT, bytes], AskedT]) -> list[AskedT]:
    """Have all callers ask at once until no request is left, and return what `ask` has of each request, in no order.

    A request is made when its turn comes. The first error ends all, once those under way are answered; it is raised.
    """
    shared, ended = _Shared(iter(requests)), Event()

    def loop(caller: CallerT) -> list[AskedT]:
        found = []
        try:
            while not ended.is_set() and (request := shared.next()) is not None:
                found.append(ask(caller, request))
        except BaseException:
            ended.set()
            raise
        return found

    with ThreadPoolExecutor(len(callers)) as threads:
        try:
            loops = [threads.submit(loop, each) for each in callers]
            return [asked for each in loops for asked in each.result()]
        finally:
            ended.set()


class _Shared:
    """Iterator that several threads share."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self._lock = Lock()

    def next(self) -> bytes | None:
        with self._lock:
            return next(self._requests, None)
