"""Counts requests in one process; `telemetry/ports.RequestRecorder`.

In plain dictionaries by the one thread that serves, and turned into metrics when the page is asked for: a labelled counter and a
histogram of the client library cost 5 us a request, which is a third of a hop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container

from control_plane.core.infer_call import Door, Outcome
from control_plane.telemetry.adapters.metric_labels import COLLECTIVE, MAX_CHARS, OTHER
from control_plane.telemetry.request_counts import BUCKETS_S, Ended, RequestCounts, Took


class RequestCounter:
    """Table of counts by model, door and outcome, with a bound on models."""

    def __init__(self, *, most_models: int, existing: Container[str]) -> None:
        """Models beyond `most_models` are counted together. `existing` are those that there are now; others make room when needed."""
        self._most_models = most_models
        self._existing = existing
        self._models: set[str] = set()
        self._ended: dict[tuple[str, Door, Outcome], int] = {}
        self._took: dict[tuple[str, Door], list[int]] = {}
        self._seconds: dict[tuple[str, Door], float] = {}

    def record(self, *, model_name: str, door: Door, outcome: Outcome, duration_s: float, count: int = 1) -> None:
        """Count requests of a model that exists, or of those that none has (`core/model.UNKNOWN_MODEL`)."""
        model = model_name if model_name in self._models else self._admitted(model_name)
        ended = (model, door, outcome)
        self._ended[ended] = self._ended.get(ended, 0) + count
        took = (model, door)
        if took not in self._took:
            self._took[took], self._seconds[took] = [0] * (len(BUCKETS_S) + 1), 0.0
        self._took[took][bisect_left(BUCKETS_S, duration_s)] += count
        self._seconds[took] += duration_s * count

    def counts(self, *, in_flight: int) -> RequestCounts:
        """All of it up to now."""
        if len(self._models) >= self._most_models:
            self._fold_what_is_gone()
        return RequestCounts(
            ended=tuple(Ended(*key, count) for key, count in self._ended.items()),
            took=tuple(Took(*key, tuple(counts), self._seconds[key]) for key, counts in self._took.items()),
            in_flight=in_flight,
        )

    def _admitted(self, model: str) -> str:
        if model not in COLLECTIVE:
            if len(self._models) >= self._most_models or len(model) > MAX_CHARS:
                return OTHER
            self._models.add(model)
        return model

    def _fold_what_is_gone(self) -> None:
        """Count models that no longer exist together, so that a gateway that has seen many come and go can tell new ones apart."""
        gone = {model for model in self._models if model not in self._existing}
        self._models -= gone
        for model, door, outcome in [key for key in self._ended if key[0] in gone]:
            count = self._ended.pop((model, door, outcome))
            self._ended[OTHER, door, outcome] = self._ended.get((OTHER, door, outcome), 0) + count
        for model, door in [key for key in self._took if key[0] in gone]:
            counts, seconds = self._took.pop((model, door)), self._seconds.pop((model, door))
            others = self._took.get((OTHER, door), [0] * len(counts))
            self._took[OTHER, door] = [one + other for one, other in zip(others, counts, strict=True)]
            self._seconds[OTHER, door] = self._seconds.get((OTHER, door), 0.0) + seconds
