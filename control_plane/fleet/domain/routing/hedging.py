"""Hedging policy: after which time a request goes to a second server as well, which requests may, and to which
server.

A hedge is a second replica of a request that is late; the first answer wins (Dean and Barroso, "The tail at scale",
2013). Here it goes only to a server with an idle instance of the model, so that it delays nobody (Primorac,
Oikonomopoulos and Argyraki, "When to hedge in interactive services", NSDI 2021), and only when the request is more likely than
not to take longer than a new one would: late alone are 2 % of any model's requests, also of one that has no
stragglers. `fleet/routing/hedging` carries it out.
"""

from __future__ import annotations

from collections.abc import Container
from math import inf

from control_plane.core.infer_call import InferCall
from control_plane.fleet.domain.fleet import Fleet, Server
from control_plane.fleet.domain.routing.latency import LatencyDistribution, Survival

_LATE_PART = 0.98
"""A request is hedged only once it is later than this part of its model's requests of its size: that bounds what hedging costs."""
_LEAST_CHANCE = 0.5
"""Least probability that a hedge is answered first. With it no more than half of what is hedged is in vain, and a model without
stragglers is left alone."""
_LEAST_ANSWERS = 200
"""Requests of a size class before any is hedged: four are then later than 98 %."""
_LEAST_DELAY_S = 0.002
"""Shortest delay: less may as well be this process's own."""
_LOOK_AGAIN_S = 0.001
"""How soon an idle server is looked for again, at first; after twice the time each further time. That is for those where other
processes' requests have ended: of its own requests' ends a process knows at once."""
_LINGERS_MOST_S = 1.0
"""Longest time that a server counts as busy with what was cancelled there. Whatever takes longer may hang: the server is to be tried
again."""
_NEWS = 0.05
"""Part of the remembered requests that has to be new before a delay is computed anew."""


def size_class(call: InferCall) -> int:
    """Size class of a request: requests of one class differ by less than a factor of two in numbers and bytes of
    text, by which most models' times go."""
    return (call.elements + call.text_bytes).bit_length()


def may_be_hedged(call: InferCall, *, is_repeatable: bool, has_sequences: bool) -> bool:
    """Whether computing the request twice at the same time does no harm, and either answer will do.

    Without shared memory, into which two servers would write at once.
    """
    return is_repeatable and not has_sequences and not call.sequence_id and not call.uses_shared_memory


def idle_server(fleet: Fleet, model: str, *, avoid: Container[str], pool: str | None = None) -> Server | None:
    """Return a server, none of `avoid`, that has the model ready with an instance that has nothing to do, and takes
    requests of the pool; None if there is none. Of several one without any request for the model, then the one with
    the least other work, then the one that rested longest."""
    facts = fleet.models.get(model)
    instances = 1 if facts is None else facts.spec.instances
    idle = [
        (replica.in_flight, server.work_s, replica.last_used_s, server.name)
        for server, replica in fleet.ready_replicas(model)
        if server.name not in avoid and replica.in_flight < instances and server.is_for(pool)
    ]
    return fleet.servers[min(idle)[3]] if idle else None


def looks_again_after_s(looks: int) -> float:
    """Return after which time an idle server is looked for again, after so many looks."""
    return float(_LOOK_AGAIN_S * 2 ** (looks - 1))


def lingers_s(took_s: float) -> float:
    """Return how long a server counts as busy with a request that was cancelled `took_s` after it was sent there: few
    models heed that, and Triton does not say when they have ended."""
    return min(_LINGERS_MOST_S, took_s)


def hedge_after_s(survival: Survival) -> float:
    """Return the delay of a hedge: the shortest time, beyond nearly all answers, at which a request is more likely
    than not to take longer than a new one, sent then; infinite if there is none."""
    late_s, new_s = survival.quantile_s(_LATE_PART), survival.quantile_s(0.5)
    for time_s, part in zip(survival.times_s, survival.parts, strict=True):
        # The last bucket has the slowest request ever seen: there is nobody beyond it for whom to wait.
        if time_s >= late_s and part > 0.0 and survival.after(time_s + new_s) >= _LEAST_CHANCE * part:
            return max(time_s, _LEAST_DELAY_S)
    return inf


class HedgeDelays:
    """Hedge delays by model and size class, as one process's own requests show them."""

    def __init__(self) -> None:
        self._classes: dict[str, dict[int, _SizeClass]] = {}

    def note_answer(self, model: str, size: int, took_s: float) -> None:
        """Count a request that was answered by the server that it was first sent to."""
        self._class_of(model, size).latencies.note_answer(took_s)

    def note_censored(self, model: str, size: int, waited_s: float) -> None:
        """Count a request whose hedge was answered first, after the first server had had it for `waited_s`."""
        self._class_of(model, size).latencies.note_censored(waited_s)

    def delay_s(self, model: str, size: int) -> float:
        """Return after which time a request is hedged; infinite if never, or too little is known."""
        return self._class_of(model, size).delay_s()

    def expected_s(self, model: str, size: int) -> float:
        """Return the mean latency at one server, as if nothing had been sent to a second one; infinite if too little is
        known. What a model is charged for, and Triton's own mean, fall with what is cancelled. While requests go to two
        servers it is rather too long than too short, as losers count as out at the end of their winners' bucket."""
        found = self._class_of(model, size)
        found.delay_s()
        return found.expected_s

    def retain_only(self, models: Container[str]) -> None:
        """Forget all models but these."""
        self._classes = {model: classes for model, classes in self._classes.items() if model in models}

    def _class_of(self, model: str, size: int) -> _SizeClass:
        classes = self._classes.get(model)
        if classes is None:
            classes = self._classes[model] = {}
        found = classes.get(size)
        if found is None:
            found = classes[size] = _SizeClass()
        return found


class _SizeClass:
    """One model's requests of one size class: their latencies, and what follows from them, computed anew now and
    then."""

    __slots__ = ("_computed_at", "_delay_s", "expected_s", "latencies")

    def __init__(self) -> None:
        self.latencies = LatencyDistribution()
        self.expected_s = self._delay_s = inf
        self._computed_at = 0.0

    def delay_s(self) -> float:
        latencies = self.latencies
        if latencies.noted >= self._computed_at:
            if latencies.count < _LEAST_ANSWERS:
                return inf
            survival = latencies.survival()
            self.expected_s, self._delay_s = survival.mean_s, hedge_after_s(survival)
            self._computed_at = latencies.noted + _NEWS * latencies.count
        return self._delay_s
