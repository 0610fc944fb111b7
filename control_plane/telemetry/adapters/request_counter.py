"""Counters and histograms of one process's requests; implements `telemetry/ports.RequestRecorder`.

They are plain dictionaries, written by the one thread that serves and turned into metrics at a scrape: a
labelled counter and histogram of the client library would cost 5 us per request, a third of what the gateway
adds in all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from operator import add

from control_plane.core.infer_call import Frontend, Outcome
from control_plane.telemetry.adapters.metric_labels import COLLECTIVE, MAX_CHARS
from control_plane.telemetry.request_counts import BUCKETS_S, OTHER, ComputedCount, DurationHistogram, OutcomeCount, RequestCounts


@dataclass(slots=True)
class _Series:
    """Counters of one model's requests over one protocol."""

    ended: dict[Outcome, int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    seconds: float = 0.0

    def include(self, other: _Series) -> None:
        """Add the counts of another model."""
        for outcome, count in other.ended.items():
            self.ended[outcome] = self.ended.get(outcome, 0) + count
        self.buckets = list(map(add, self.buckets, other.buckets))
        self.seconds += other.seconds


class RequestCounter:
    """Counters by model, protocol and outcome, with a bound on the models that are told apart."""

    def __init__(self, *, max_models: int, existing: Container[str]) -> None:
        """Models beyond `max_models` are counted together; `existing` are the present models, of which
        others make way.
        """
        self._max_models = max_models
        self._existing = existing
        self._models: set[str] = set()
        self._series: dict[tuple[str, Frontend], _Series] = {}
        self._computed: Counter[str] = Counter()

    def record(self, *, model_name: str, frontend: Frontend, outcome: Outcome, duration_s: float, count: int = 1) -> None:
        """Count ended requests of an existing model, or of `core/model.UNKNOWN_MODEL` for names that no model
        has.
        """
        series = self._series.get((model_name, frontend)) or self._series_of(self._admitted(model_name), frontend)
        series.ended[outcome] = series.ended.get(outcome, 0) + count
        series.buckets[bisect_left(BUCKETS_S, duration_s)] += count
        series.seconds += duration_s * count

    def record_computed(self, model_name: str) -> None:
        """Count a request that took a server's time, of a model as `record` takes it."""
        self._computed[self._admitted(model_name)] += 1

    def counts(self, *, in_flight: int) -> RequestCounts:
        """Return all counters up to now."""
        if len(self._models) >= self._max_models:
            self._fold_removed_models()
        known = self._series.items()
        return RequestCounts(
            ended=tuple(OutcomeCount(*key, outcome, count) for key, series in known for outcome, count in series.ended.items()),
            took=tuple(DurationHistogram(*key, tuple(series.buckets), series.seconds) for key, series in known),
            in_flight=in_flight,
            computed=tuple(ComputedCount(*each) for each in self._computed.items()),
        )

    def _series_of(self, model: str, frontend: Frontend) -> _Series:
        series = self._series.get((model, frontend))
        if series is None:
            series = self._series[model, frontend] = _Series()
        return series

    def _admitted(self, model: str) -> str:
        if model not in COLLECTIVE and model not in self._models:
            if len(self._models) >= self._max_models or len(model) > MAX_CHARS:
                return OTHER
            self._models.add(model)
        return model

    def _fold_removed_models(self) -> None:
        """Move the counts of models that no longer exist to `OTHER`, which makes room for new models.

        Done only when the bound is reached: until then a model that comes back continues its series.
        """
        gone = {model for model in self._models if model not in self._existing}
        self._models -= gone
        if moved := sum(self._computed.pop(model, 0) for model in gone):
            self._computed[OTHER] += moved
        for model, frontend in [key for key in self._series if key[0] in gone]:
            self._series_of(OTHER, frontend).include(self._series.pop((model, frontend)))
