"""Forecasts of a model's next use, from its idle times and from the models that were used before it."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable
from math import ceil
from statistics import fmean, pstdev
from typing import Protocol

from control_plane.fleet.simulation.workload import Request


class Forecast(Protocol):
    """Forecast of the next uses of models."""

    weighs: bool
    """Whether its probabilities are weighed against those of the models that would have to go."""

    def used(self, model: str, now_s: float) -> None:
        """Note a request for the model."""

    def probability(self, model: str, now_s: float, within_s: float) -> float:
        """The probability that the model is asked for within this time."""


class IdleTimes:
    """Empirical distribution of each model's idle times; those that were as long as the present one tell how
    likely it ends soon."""

    weighs = True

    def __init__(self, least: int = 3) -> None:
        """Fewer idle times than `least` tell nothing."""
        self._least = least
        self._last_s: dict[str, float] = {}
        self._idle_s: dict[str, list[float]] = defaultdict(list)

    def used(self, model: str, now_s: float) -> None:
        if model in self._last_s:
            insort(self._idle_s[model], now_s - self._last_s[model])
        self._last_s[model] = now_s

    def probability(self, model: str, now_s: float, within_s: float) -> float:
        if model not in self._last_s:
            return 0.0
        idle_s, known = now_s - self._last_s[model], self._idle_s[model]
        shorter = bisect_right(known, idle_s)
        longer = len(known) - shorter
        # One more than there are (Laplace): three of three are no certainty.
        return 0.0 if longer < self._least else (bisect_right(known, idle_s + within_s) - shorter) / (longer + 1)


class Successions:
    """First-order successions: how often a model was used within a time after another one was."""

    weighs = True

    def __init__(self, window_s: float, least: int = 4) -> None:
        self._window_s, self._least = window_s, least
        self._times = Counter[str]()
        self._followed: dict[str, Counter[str]] = defaultdict(Counter)
        self._open: dict[str, tuple[float, set[str]]] = {}
        """Model -> when its window began, and the models that have come in it."""

    def used(self, model: str, now_s: float) -> None:
        for leader, (since_s, followers) in list(self._open.items()):
            if now_s - since_s > self._window_s:
                del self._open[leader]
            elif model != leader and model not in followers:
                followers.add(model)
                self._followed[leader][model] += 1
        if model not in self._open:
            self._times[model] += 1
            self._open[model] = now_s, set()

    def probability(self, model: str, now_s: float, within_s: float) -> float:
        leaders = (leader for leader, (since_s, seen) in self._open.items() if now_s - since_s <= self._window_s and model not in seen)
        return max((self._after(leader, model) for leader in leaders), default=0.0)

    def _after(self, leader: str, model: str) -> float:
        """How often the model followed; the present window, which is not over, does not count."""
        times = self._times[leader] - 1
        return self._followed[leader][model] / (times + 1) if times >= self._least else 0.0


class Patterns:
    """The more confident one of idle times and successions."""

    weighs = True

    def __init__(self, window_s: float) -> None:
        self._parts: tuple[Forecast, ...] = IdleTimes(), Successions(window_s)

    def used(self, model: str, now_s: float) -> None:
        for part in self._parts:
            part.used(model, now_s)

    def probability(self, model: str, now_s: float, within_s: float) -> float:
        return max(part.probability(model, now_s, within_s) for part in self._parts)


class HybridHistogram:
    """The hybrid histogram of Shahrad et al., "Serverless in the Wild" (USENIX ATC 2020), section 4.2: a model is wanted from
    shortly before the 5th percentile of its idle times to shortly after the 99th, if the histogram is representative.

    A bin is as long as a load, of which theirs had a minute's 240. Where theirs falls back on a fixed keep-alive, placement's
    eviction does that here; their ARIMA for idle times beyond the histogram is missing.
    """

    weighs = False
    _BINS = 240
    _MARGIN = 0.10
    _LEAST_VARIATION = 2.0

    def __init__(self, bin_s: float) -> None:
        self._bin_s = bin_s
        self._last_s: dict[str, float] = {}
        self._counts: dict[str, list[int]] = {}
        self._beyond = Counter[str]()
        self._wanted: dict[str, tuple[float, float] | None] = {}

    def used(self, model: str, now_s: float) -> None:
        if (last_s := self._last_s.get(model)) is not None:
            number = int((now_s - last_s) / self._bin_s)
            if number < self._BINS:
                self._counts.setdefault(model, [0] * self._BINS)[number] += 1
            else:
                self._beyond[model] += 1
            self._wanted.pop(model, None)
        self._last_s[model] = now_s

    def probability(self, model: str, now_s: float, within_s: float) -> float:
        """1 while it is wanted, whatever `within_s`."""
        if model not in self._wanted:
            self._wanted[model] = self._window(model)
        wanted = self._wanted[model]
        return 0.0 if wanted is None else float(wanted[0] <= now_s - self._last_s[model] <= wanted[1])

    def _window(self, model: str) -> tuple[float, float] | None:
        """Seconds after a use from which and until which the model is wanted; None if the histogram says nothing."""
        counts = self._counts.get(model)
        if counts is None or self._beyond[model] > sum(counts) or pstdev(counts) < self._LEAST_VARIATION * fmean(counts):
            return None
        head, tail = _percentile(counts, 0.05), _percentile(counts, 0.99)
        return (1 - self._MARGIN) * head * self._bin_s, (1 + self._MARGIN) * (tail + 1) * self._bin_s


class Clairvoyant:
    """Forecast that knows the trace, which no other can surpass."""

    weighs = True

    def __init__(self, requests: Iterable[Request]) -> None:
        self._times: dict[str, list[float]] = defaultdict(list)
        for request in requests:
            self._times[request.model].append(request.at_s)

    def used(self, model: str, now_s: float) -> None: ...

    def probability(self, model: str, now_s: float, within_s: float) -> float:
        times = self._times[model]
        return float(bisect_right(times, now_s + within_s) > bisect_right(times, now_s))


def _percentile(counts: list[int], part: float) -> int:
    """The first bin up to which so much of all lies."""
    left = ceil(part * sum(counts))
    for number, count in enumerate(counts):
        left -= count
        if left <= 0:
            return number
    return len(counts) - 1
