"""What is known of a fleet's models by having loaded them: in the facts that policies decide by, and as it outlives processes.

A model's size is, in this order: what its owner declares; what its loads and the weighing of servers have shown, where a server's
memory can be read (an embedded Triton's); what Triton itself tells, where it is attached and the model's backend reports it (native
ONNX Runtime and TensorRT do, Python does not); what was remembered of any of these while its files are as large as they were; and
until then its files' bytes, where there are any here, and a process for it and each step of an ensemble.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from control_plane.core.backoff import RestartLimits, restart_delay_s
from control_plane.core.model import ModelState
from control_plane.core.names import MOST_BYTES
from control_plane.fleet.domain.fleet import NEVER_S, Copy, Fleet, ModelFacts
from control_plane.fleet.domain.memory import Measured
from control_plane.models.domain.description import DescribedModel

FIRST_LOAD_S = 2.0
"""Of a model that has never been loaded: a Python stub with its imports takes about that."""
FIRST_SERVICE_S = 0.01
PROCESS_BYTES = 48 * 2**20
"""What a model takes beside its weights until it has been measured: a Python stub with its imports."""
SMOOTHING = 0.2
"""Of each new measurement of loads and services."""

_QUARANTINE = RestartLimits(first_delay_s=2.0, max_delay_s=300.0)
_WORTH_TELLING = 0.5
"""Of what is known as a service time: it changes with every request, and the next process only starts from it."""

_WORTH_SHRINKING = 0.1
"""Of what a server holds: what its models take goes up and down by itself."""

_TEXT_BYTES = 2000


class Measurements:
    """The sizes, load times and failures of models that one process has measured; another one's may be put in their place (`recall`)."""

    def __init__(self, fleet: Fleet, *, now_s: Callable[[], float], today_s: Callable[[], float]) -> None:
        """`now_s` is the loop's time, `today_s` seconds since 1970."""
        self.known: dict[str, Measured] = {}
        self._fleet = fleet
        self._now_s = now_s
        self._today_s = today_s
        self._loaded: dict[str, int] = {}
        """What loads in this process have shown of models at most. Less is not believed: into memory that a server has kept from another
        a model seems to take less."""

        self._changed_ns: dict[str, int] = {}
        """When its files were last changed, as of the last look."""

    def of(self, model: str) -> Measured:
        return self.known.get(model, Measured(0))

    # The facts

    def describe(self, facts: ModelFacts, model: DescribedModel, *, fetch_s: float) -> None:
        """Bring them in line with what is known of it as it is now; from its tier it takes `fetch_s` more to load."""
        if self._changed_ns.setdefault(facts.name, model.changed_ns) != model.changed_ns:
            self._changed_ns[facts.name] = model.changed_ns
            self.forgive(facts.name)  # what was wrong may have been put right
        known = self._of_these_files(facts.name, model.file_bytes)
        estimate = model.file_bytes + PROCESS_BYTES * (1 + len(model.steps))
        held = facts.resident_bytes if facts.name in self._fleet.holders else 0  # by what it was, if its files have changed
        measured = known.resident_bytes if known.resident_bytes is not None else max(estimate, held)
        facts.resident_bytes = measured if facts.spec.resident_bytes is None else facts.spec.resident_bytes
        facts.load_s = (FIRST_LOAD_S if known.load_s is None else known.load_s) + fetch_s

    def _of_these_files(self, model: str, file_bytes: int) -> Measured:
        known = self.of(model)
        if model in self.known and file_bytes not in (0, known.file_bytes):
            if known.file_bytes != 0:
                self.forgive(model)
                self._loaded.pop(model, None)
                known = Measured(0, answered=known.answered, refusal=known.refusal)
            known = self.known[model] = replace(known, file_bytes=file_bytes)
        return known

    def recall(self, model: str, known: Measured | None) -> None:
        """As it was told elsewhere; `describe` makes facts of it, but for when it may be tried again."""
        if known is None:
            self.known.pop(model, None)
        else:
            self.known[model] = known
        if (facts := self._fleet.models.get(model)) is not None:
            self.quarantine(facts)

    def first_service_s(self, model: str) -> float:
        """What is expected of it before it has served anybody here."""
        known_s = self.of(model).service_s
        return FIRST_SERVICE_S if known_s is None else known_s

    # Sizes and times

    def loaded(self, model: str, took_s: float, bytes_more: int | None) -> None:
        """It has been; `bytes_more` is what the server holds more than before, where that can be told."""
        facts, known = self._fleet.models[model], self.of(model)
        before_s = took_s if known.load_s is None else known.load_s
        facts.load_s = before_s + SMOOTHING * (took_s - before_s)
        self.known[facts.name] = replace(known, load_s=facts.load_s)
        if bytes_more is not None:
            self._loaded[model] = max(bytes_more, self._loaded.get(model, 0))
            self._at_least(facts, bytes_more)

    def weighed(self, server: str, held_bytes: int) -> None:
        """All that is there holds so much together: what is more than was thought is the lot of those whose owners declare nothing.

        Nobody can tell which of them it is. So what they were given too much is taken back where all that is there turns out to hold less;
        not by a load that shows less, since many models grow with their first requests, each time anew.
        """
        copies = [copy for copy in self._fleet.servers[server].copies.values() if not copy.is_step]
        if any(copy.state is not ModelState.READY for copy in copies):
            return
        grown = held_bytes - sum(copy.bytes for copy in copies)
        undeclared = [facts for copy in copies if (facts := self._fleet.models.get(copy.model)) and facts.spec.resident_bytes is None]
        thought = sum(facts.resident_bytes for facts in undeclared)
        if grown > 0 and thought > 0:
            for facts in undeclared:
                self._at_least(facts, facts.resident_bytes + int(grown * facts.resident_bytes / thought))
        elif -grown > _WORTH_SHRINKING * held_bytes:
            self._take_back(-grown, [self._fleet.models[copy.model] for copy in copies if self._is_at_its_size(copy)])

    def _is_at_its_size(self, copy: Copy) -> bool:
        """It is there, and nowhere else, as a load of it has been measured, and has been used since."""
        return copy.model in self._loaded and len(self._fleet.holders[copy.model]) == 1 and copy.last_used_s > copy.since_s

    def _take_back(self, surplus: int, models: Sequence[ModelFacts]) -> None:
        """Of what each is thought to take beside what its loads have shown, in proportion."""
        shares = {
            facts.name: max(0, facts.resident_bytes - self._loaded[facts.name]) for facts in models if facts.spec.resident_bytes is None
        }
        part = min(1.0, surplus / max(1, sum(shares.values())))
        for model, share in shares.items():
            facts = self._fleet.models[model]
            facts.resident_bytes -= int(share * part)
            self.known[model] = replace(self.of(model), resident_bytes=facts.resident_bytes)

    def told(self, sizes: Mapping[str, int]) -> None:
        """A Triton says what its models hold."""
        for model, size in sizes.items():
            if (facts := self._fleet.models.get(model)) is not None:
                self._at_least(facts, size)

    def _at_least(self, facts: ModelFacts, size: int) -> None:
        known, size = self.of(facts.name), min(size, MOST_BYTES)
        if facts.spec.resident_bytes is None and size > (known.resident_bytes or 0):
            facts.resident_bytes = size
            self.known[facts.name] = replace(known, resident_bytes=size)

    def told_service(self, model: str, service_s: float, count: int) -> None:
        """What so many requests have taken elsewhere, mean."""
        if (facts := self._fleet.models.get(model)) is not None:
            facts.service_s += (1 - (1 - SMOOTHING) ** count) * (service_s - facts.service_s)

    def take_down_services(self) -> None:
        """What requests take by now, where that is something else than is known."""
        for name, facts in self._fleet.models.items():
            before_s = self.first_service_s(name)
            if abs(facts.service_s - before_s) > _WORTH_TELLING * before_s:
                self.known[name] = replace(self.of(name), service_s=facts.service_s)

    # Failures

    def failed(self, facts: ModelFacts, why: str, *, is_passing: bool = False) -> None:
        """A load of it has: it is left alone for a while, each time for longer. `is_passing` is what is no fault of its files."""
        known = self.of(facts.name)
        until_s = self._today_s() + restart_delay_s(known.failures + 1, limits=_QUARANTINE)
        self.known[facts.name] = replace(
            known,
            failures=known.failures + 1,
            quarantined_until_s=until_s,
            why=_kept(why),
            is_on_trial=known.is_on_trial or (known.load_s is None and not is_passing),
        )
        self.quarantine(facts)

    def forgive(self, model: str) -> None:
        """It may be tried again, or it has been loaded."""
        if (known := self.known.get(model)) is not None:
            self.known[model] = replace(known, failures=0, quarantined_until_s=0.0, why="", is_on_trial=False)
        if (facts := self._fleet.models.get(model)) is not None:
            facts.quarantined_until_s, facts.is_on_trial = NEVER_S, False

    def why_failed(self, model: str) -> str | None:
        """Why its last load has failed; None: it has not, or it may be tried as if it had not."""
        known = self.of(model)
        return known.why if known.failures else None

    def why_quarantined(self, model: str) -> str | None:
        """Why it is not tried again yet; None: it has not failed, or it is."""
        facts = self._fleet.models.get(model)
        return self.why_failed(model) if facts is not None and facts.quarantined_until_s > self._now_s() else None

    def quarantine(self, facts: ModelFacts) -> None:
        """Leave it alone for as long as is known that it should be, and then try it in no other's place."""
        known = self.of(facts.name)
        facts.is_on_trial = known.is_on_trial
        left_s = min(known.quarantined_until_s - self._today_s(), _QUARANTINE.max_delay_s)  # others' clocks may be wrong
        facts.quarantined_until_s = self._now_s() + left_s if left_s > 0 else NEVER_S

    # What others asked for

    def answer(self, model: str, asked: str, refusal: str) -> None:
        """What was asked has been done, or there is a reason why not."""
        self.known[model] = replace(self.of(model), answered=asked, refusal=_kept(refusal))


def _kept(text: str) -> str:
    """As it can be written anywhere."""
    return text.encode(errors="replace")[:_TEXT_BYTES].decode(errors="replace")
