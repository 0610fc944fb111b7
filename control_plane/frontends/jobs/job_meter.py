"""Meter of one request of a job: its usage is charged with the job's record, not when the request ends."""

from __future__ import annotations

from collections.abc import Mapping

from control_plane.core.infer_call import Outcome
from control_plane.inference.governance import Meter
from control_plane.metering.domain.usage import COUNTED_AS, MOST, Usage, UsageEvent


class JobMeter:
    """Meter of one job's request: keeps its usage for the job's record, and passes its line on to the request log."""

    def __init__(self, log: Meter) -> None:
        self._log = log
        self.dropped = 0
        self.model = ""
        self.usage: Usage | None = None

    @property
    def has_log(self) -> bool:
        return self._log.has_log

    @property
    def units(self) -> Mapping[str, float]:
        return self._log.units

    def note_units(self, tenant: str, compute_units: float) -> None:
        self._log.note_units(tenant, compute_units)

    def add(self, tenant: str, model: str, outcome: Outcome, rows: int, elements: int, compute_units: float, cache_hit: bool, /) -> None:
        counted = {COUNTED_AS[outcome]: 1}
        sums = {"rows": min(rows, MOST), "elements": min(elements, MOST), "compute_units": compute_units, "cache_hits": int(cache_hit)}
        self._log.note_units(tenant, compute_units)
        self.model, self.usage = model, Usage(**counted, **sums)  # type: ignore[arg-type]  # only compute_units is fractional

    def add_hits(self, tenant: str, model: str, *, requests: int, rows: int, elements: int) -> None:
        self.model, self.usage = model, Usage(requests=requests, rows=rows, elements=elements, cache_hits=requests)

    def add_refusals(self, tenant: str, model: str, *, requests: int) -> None:
        """Nothing: a job's requests are not answered unparsed."""

    def add_tokens(self, tenant: str, model: str, input_tokens: int, output_tokens: int, /) -> None:
        """Nothing: no job generates text."""

    def split(self, requests: int) -> list[JobMeter]:
        """Return meters of so many requests that were computed as the one of this meter; the first has the units and rows of
        all.
        """
        meters = [JobMeter(self._log) for _ in range(requests)]
        if self.usage is not None:
            rest = Usage(requests=self.usage.requests, cache_hits=self.usage.cache_hits)
            for meter, usage in zip(meters, (self.usage, *[rest] * (requests - 1)), strict=True):
                meter.model, meter.usage = self.model, usage
        return meters

    def log(self, event: UsageEvent) -> None:
        self._log.log(event)
