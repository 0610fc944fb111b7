"""Latency as a dial: of a route's models, the most accurate one that should answer within a request's latency budget.

What a model should take is what admission knows of it: its queue, the work at Triton and the request's own cost
(`admission/domain/deadline`), and where it is being loaded the time until that is over. So a model that becomes busy
is left to those who give it time, at once and before anybody is late. Called by `inference/routes/targets`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.errors import InvalidRequest
from control_plane.core.infer_call import InferCall
from control_plane.inference.domain.latency_margin import LatencyMargin
from control_plane.inference.governance import Governance
from control_plane.inference.model_names import ModelNames
from control_plane.objects.domain.route import Route

BUDGET_HEADER = "tidegate-latency-budget-ms"
"""Request header (HTTP) or metadata (gRPC): milliseconds within which the caller wants an answer, if need be by a faster
and less accurate model of the route."""
_MOST_MS = 24 * 3600 * 1000
_MAX_MARGINS = 20_000
"""Margins that are kept; of a tenant whose margin is not, it is learned anew."""


@dataclass(frozen=True, slots=True)
class BudgetChoice:
    """Choice of a model for one request by its latency budget."""

    call: InferCall
    """The call as it goes to the chosen model."""
    tenant: str
    budget_s: float
    expected_s: float
    """Seconds in which the model should answer on average; 0 where nothing is known."""


class Forecast(Protocol):
    """Forecast of what models take now."""

    def answer_s(self, call: InferCall) -> float:
        """Return the seconds in which a request should be answered on average; 0 where nothing is known of its model."""


class AdmissionForecast:
    """Implementation of `Forecast` by what admission has measured."""

    def __init__(self, governance: Governance, models: ModelNames, ready_in_s: Callable[[str], float]) -> None:
        """`ready_in_s` as in `inference/dispatch/dispatch.Dispatch`."""
        self._costs = governance.costs
        self._slots = governance.admission.slots
        self._models = models
        self._ready_in_s = ready_in_s

    def answer_s(self, call: InferCall) -> float:
        loaded_s = self._ready_in_s(call.model_name)
        limiter = self._slots.models.get(self._models.name_of(call.model_name))
        if limiter is None:
            return loaded_s
        rows, by_table, rest, _ = self._costs.estimate(call)
        return loaded_s + limiter.answer_s(float(rows) if rest is None else by_table + rest)


class LatencyDial:
    """Chooser of models by latency budgets, of one process."""

    def __init__(self, forecast: Forecast) -> None:
        self.totals: Counter[tuple[str, str, bool]] = Counter()
        """Answers by route, by model and by whether they came within the budget."""
        self._forecast = forecast
        self._margins = BoundedCache[tuple[str, str, str], LatencyMargin].of_entries(_MAX_MARGINS)
        """The margin of each tenant at each model, by its name and version. A tenant whose requests take longer than they look would
        else keep the requests of all others away. Only models of routes with faster ones are asked for."""

    def choose(self, calls: list[InferCall], budget_s: float, *, tenant: str) -> BudgetChoice:
        """Choose the model of a tenant's request that any of these calls answers, that of the most accurate model first."""
        *better, fastest = calls
        for call in better:
            expected_s = self._forecast.answer_s(call)
            if self._margin(call, tenant).fits(expected_s, budget_s):
                return BudgetChoice(call, tenant, budget_s, expected_s)
        return BudgetChoice(fastest, tenant, budget_s, self._forecast.answer_s(fastest))

    def answered(self, route: str, model: str, choice: BudgetChoice, *, took_s: float) -> None:
        """Note how long an answer took by this choice; `route` and `model` are their names for `totals`."""
        self.totals[route, model, took_s <= choice.budget_s] += 1
        self._margin(choice.call, choice.tenant).answered(choice.expected_s, took_s)

    def _margin(self, call: InferCall, tenant: str) -> LatencyMargin:
        place = tenant, call.model_name, call.model_version
        found = self._margins.get(place)
        if found is None:
            found = LatencyMargin()
            self._margins.keep(place, found)
        return found


def budget_s_of(text: str | None, route: Route) -> float | None:
    """Return the latency budget of a request whose header field says `text`: that, else its route's; None: it has none.

    Raises InvalidRequest.
    """
    if text is None:
        return route.latency_budget_s
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(_MOST_MS)) or not 0 < int(text) <= _MOST_MS:
        raise InvalidRequest(f"{BUDGET_HEADER} must be a whole number of milliseconds up to a day, got {text[:100]!r}")
    return int(text) / 1000
