"""Counters and histograms of one process's requests; implements `telemetry/ports.RequestRecorder`.

They are plain dictionaries, written by the one thread that serves and turned into metrics at a scrape: a
labelled counter and histogram of the client library would cost 5 us per request, a third of what the gateway
adds in all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container

from control_plane.core.infer_call import Frontend, Outcome
from control_plane.telemetry.adapters.metric_labels import COLLECTIVE, MAX_CHARS, OTHER
from control_plane.telemetry.request_counts import BUCKETS_S, DurationHistogram, OutcomeCount, RequestCounts


class RequestCounter:
    """Counters by model, protocol and outcome, with a bound on the models that are told apart."""

    def __init__(self, *, max_models: int, existing: Container[str]) -> None:
        """Models beyond `max_models` are counted together; `existing` are the present models, of which
        others make way.
        """
        self._max_models = max_models
        self._existing = existing
        self._models: set[str] = set()
        self._ended: dict[tuple[str, Frontend, Outcome], int] = {}
        self._took: dict[tuple[str, Frontend], list[int]] = {}
        self._seconds: dict[tuple[str, Frontend], float] = {}

    def record(self, *, model_name: str, frontend: Frontend, outcome: Outcome, duration_s: float, count: int = 1) -> None:
        """Count ended requests of an existing model, or of `core/model.UNKNOWN_MODEL` for names that no model
        has.
        """
        model = model_name if model_name in self._models else self._admitted(model_name)
        ended = (model, frontend, outcome)
        self._ended[ended] = self._ended.get(ended, 0) + count
        took = (model, frontend)
        if took not in self._took:
            self._took[took], self._seconds[took] = [0] * (len(BUCKETS_S) + 1), 0.0
        self._took[took][bisect_left(BUCKETS_S, duration_s)] += count
        self._seconds[took] += duration_s * count

    def counts(self, *, in_flight: int) -> RequestCounts:
        """Return all counters up to now."""
        if len(self._models) >= self._max_models:
            self._fold_removed_models()
        return RequestCounts(
            ended=tuple(OutcomeCount(*key, count) for key, count in self._ended.items()),
            took=tuple(DurationHistogram(*key, tuple(counts), self._seconds[key]) for key, counts in self._took.items()),
            in_flight=in_flight,
        )

    def _admitted(self, model: str) -> str:
        if model not in COLLECTIVE:
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
        for model, frontend, outcome in [key for key in self._ended if key[0] in gone]:
            count = self._ended.pop((model, frontend, outcome))
            self._ended[OTHER, frontend, outcome] = self._ended.get((OTHER, frontend, outcome), 0) + count
        for model, frontend in [key for key in self._took if key[0] in gone]:
            counts, seconds = self._took.pop((model, frontend)), self._seconds.pop((model, frontend))
            others = self._took.get((OTHER, frontend), [0] * len(counts))
            self._took[OTHER, frontend] = [one + other for one, other in zip(others, counts, strict=True)]
            self._seconds[OTHER, frontend] = self._seconds.get((OTHER, frontend), 0.0) + seconds
