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
from control_plane.telemetry.work_counts import PACE_BUCKETS_S, SIZE_OF_BUCKET, SIZES, UNIT_BUCKETS, SizeDurations, WorkCounts


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


@dataclass(slots=True)
class _Work:
    """Histograms of one model's computed answers."""

    unit_buckets: list[int] = field(default_factory=lambda: [0] * (len(UNIT_BUCKETS) + 1))
    units: float = 0.0
    pace_buckets: list[int] = field(default_factory=lambda: [0] * (len(PACE_BUCKETS_S) + 1))
    paces_s: float = 0.0
    sizes: list[list[int]] = field(default_factory=lambda: [[0] * (len(BUCKETS_S) + 1) for _ in SIZES])
    seconds: list[float] = field(default_factory=lambda: [0.0] * len(SIZES))

    def counts(self, model: str) -> WorkCounts:
        """Return its counts up to now."""
        seen = [number for number, buckets in enumerate(self.sizes) if any(buckets)]
        sizes = tuple(SizeDurations(SIZES[number], tuple(self.sizes[number]), self.seconds[number]) for number in seen)
        return WorkCounts(model, tuple(self.unit_buckets), self.units, tuple(self.pace_buckets), self.paces_s, sizes)

    def include(self, other: _Work) -> None:
        """Add the counts of another model."""
        self.unit_buckets = list(map(add, self.unit_buckets, other.unit_buckets))
        self.pace_buckets = list(map(add, self.pace_buckets, other.pace_buckets))
        self.sizes = [list(map(add, mine, its)) for mine, its in zip(self.sizes, other.sizes, strict=True)]
        self.seconds = list(map(add, self.seconds, other.seconds))
        self.units += other.units
        self.paces_s += other.paces_s


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
        self._work: dict[str, _Work] = {}

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

    def record_work(self, model_name: str, units: float, duration_s: float, /) -> None:
        """Count a computed answer of a model as `record` takes it."""
        work = self._work.get(model_name) or self._work_of(self._admitted(model_name))
        bucket, pace_s = bisect_left(UNIT_BUCKETS, units), duration_s / units
        size = SIZE_OF_BUCKET[bucket]
        work.unit_buckets[bucket] += 1
        work.units += units
        work.pace_buckets[bisect_left(PACE_BUCKETS_S, pace_s)] += 1
        work.paces_s += pace_s
        work.sizes[size][bisect_left(BUCKETS_S, duration_s)] += 1
        work.seconds[size] += duration_s

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
            work=tuple(work.counts(model) for model, work in self._work.items()),
        )

    def _series_of(self, model: str, frontend: Frontend) -> _Series:
        series = self._series.get((model, frontend))
        if series is None:
            series = self._series[model, frontend] = _Series()
        return series

    def _work_of(self, model: str) -> _Work:
        work = self._work.get(model)
        if work is None:
            work = self._work[model] = _Work()
        return work

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
        for model in gone & self._work.keys():
            self._work_of(OTHER).include(self._work.pop(model))
        for model, frontend in [key for key in self._series if key[0] in gone]:
            self._series_of(OTHER, frontend).include(self._series.pop((model, frontend)))
