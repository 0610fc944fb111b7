"""Latency and cost as dials: of a route's models, the most accurate one whose answer should keep to a request's budgets.

What a model should take is what admission knows of it: its queue, the work at Triton and the request's own cost
(`admission/domain/deadline`), and where it is being loaded the time until that is over. So a model that becomes busy
is left to those who give it time, at once and before anybody is late. What its answer should cost is the estimate that
the fair queue and the request log have of each request (`metering/compute_costs`). Called by `inference/routes/targets`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.infer_call import InferCall
from control_plane.inference.domain.budgets import Budgets
from control_plane.inference.domain.exploration import Exploration
from control_plane.inference.domain.latency_margin import LatencyMargin
from control_plane.inference.governance import Governance
from control_plane.inference.model_names import ModelNames

_MAX_RECORDS = 20_000
"""Records that are kept; of a tenant whose record is not, it is learned anew."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Expectation of a model's answer to one request."""

    answer_s: float = 0.0
    """Seconds in which it should come on average; 0 where nothing is known."""
    units: float | None = None
    """Compute units that it should cost on average; None where nothing is known."""
    table_units: float = 0.0
    """The part of these that is known by latency tables, of which an answer teaches nothing."""


@dataclass(frozen=True, slots=True)
class BudgetChoice:
    """Choice of a model for one request by its budgets."""

    call: InferCall
    """The call as it goes to the chosen model."""
    tenant: str
    budgets: Budgets
    expected: Expected


class Forecast(Protocol):
    """Forecast of what models' answers take and cost now."""

    def expected(self, call: InferCall) -> Expected:
        """Return what is expected of the answer to a request."""


class AdmissionForecast:
    """Implementation of `Forecast` by what admission has measured."""

    def __init__(self, governance: Governance, models: ModelNames, ready_in_s: Callable[[str], float]) -> None:
        """`ready_in_s` as in `inference/dispatch/dispatch.Dispatch`."""
        self._costs = governance.costs
        self._slots = governance.admission.slots
        self._models = models
        self._ready_in_s = ready_in_s

    def expected(self, call: InferCall) -> Expected:
        rows, by_table, rest, _ = self._costs.estimate(call)
        units = None if rest is None else by_table + rest
        answer_s = self._ready_in_s(call.model_name)
        limiter = self._slots.models.get(self._models.name_of(call.model_name))
        if limiter is not None:
            answer_s += limiter.answer_s(float(rows) if units is None else units)
        return Expected(answer_s, units, by_table)


@dataclass(slots=True)
class _Record:
    """Record of one tenant's requests to one model."""

    margin: LatencyMargin = field(default_factory=LatencyMargin)
    exploration: Exploration = field(default_factory=Exploration)


class BudgetDial:
    """Chooser of models by budgets, of one process."""

    def __init__(self, forecast: Forecast) -> None:
        self.totals: Counter[tuple[str, str, str, str]] = Counter()
        """Answers by kind of budget, by route, by model and by whether they kept to the budget (`telemetry/request_counts.BudgetCount`)."""
        self._forecast = forecast
        self._records = BoundedCache[tuple[str, str, str], _Record].of_entries(_MAX_RECORDS)
        """The record of each tenant at each model, by its name and version. A tenant whose requests take longer than they look would
        else keep the requests of all others away. Only models of routes with faster ones are asked for."""

    def choose(self, calls: list[InferCall], budgets: Budgets, *, tenant: str) -> BudgetChoice:
        """Choose the model of a tenant's request that any of these calls answers, that of the most accurate model first."""
        *better, last = calls
        for call in better:
            expected = self._forecast.expected(call)
            record = self._record(call, tenant)
            if record.exploration.admits(max(_excesses(record, expected, budgets), default=None)):
                return BudgetChoice(call, tenant, budgets, expected)
        return BudgetChoice(last, tenant, budgets, self._forecast.expected(last))

    def answered(self, route: str, model: str, choice: BudgetChoice, *, took_s: float, has_expired: bool = False) -> None:
        """Note how long an answer took by this choice, or how long was waited for one in vain, if the request `has_expired`;
        `route` and `model` are their names for `totals`."""
        budgets, expected = choice.budgets, choice.expected
        if budgets.latency_s is not None:
            is_late, margin = took_s > budgets.latency_s, self._record(choice.call, choice.tenant).margin
            if is_late or not has_expired:  # with less time than its budget nobody knows whether it would have kept to that
                self.totals["latency", route, model, "late" if is_late else "within"] += 1
            if not has_expired or took_s > margin.needed_s(expected.answer_s):
                margin.answered(expected.answer_s, took_s)
        if budgets.cost_units is not None:
            self.totals["cost", route, model, _cost_result(expected.units, budgets.cost_units)] += 1

    def _record(self, call: InferCall, tenant: str) -> _Record:
        place = tenant, call.model_name, call.model_version
        found = self._records.get(place)
        if found is None:
            found = _Record()
            self._records.keep(place, found)
        return found


def _excesses(record: _Record, expected: Expected, budgets: Budgets) -> Iterator[float]:
    """Yield how many times its budget an answer should take on average, for each budget that it should exceed: infinitely many
    where it is not to be tried, since a table says what it costs."""
    if budgets.latency_s is not None and not record.margin.fits(expected.answer_s, budgets.latency_s):
        yield expected.answer_s / budgets.latency_s
    if budgets.cost_units is not None and expected.units is not None and expected.units > budgets.cost_units:
        yield inf if expected.table_units > budgets.cost_units else expected.units / budgets.cost_units


def _cost_result(units: float | None, budget_units: float) -> str:
    if units is None:
        return "unknown"
    return "within" if units <= budget_units else "over"
