"""Measurements of a fleet's models by their loads and requests: sizes, load and service times, failures.

They are kept twice: in `ModelFacts`, which policies read, and as `Measured` records, which outlive the process. A model's size comes
from the first of these sources that has it:

    1. what its owner declares;
    2. loads, and the memory of a whole server, where that can be read (an embedded Triton's, or by a node);
    3. what Triton reports, where it is attached and the backend does so (native ONNX Runtime and TensorRT do,
       Python does not);
    4. what was remembered of any of these, while the files have the same size;
    5. an estimate: the files' bytes, if they are here, and one process for the model and each ensemble step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from control_plane.core.algorithms.backoff import RestartLimits, restart_delay_s
from control_plane.core.model import ModelState
from control_plane.core.names import MAX_SIZE_BYTES
from control_plane.fleet.domain.fleet import NEVER_S, Fleet, ModelFacts, Replica, Server
from control_plane.fleet.domain.memory import Measured
from control_plane.fleet.domain.placement.limits import LIMITS
from control_plane.models.domain.description import DescribedModel

FIRST_LOAD_S = 2.0
"""Expected load time of a model that has never been loaded: about that of a Python stub with its imports."""
FIRST_SERVICE_S = 0.01
"""Expected service time of a model that has never served."""
PROCESS_BYTES = 48 * 2**20
"""Memory that a model takes beside its weights, until it has been measured: a Python stub with its
imports."""
SMOOTHING = 0.2
"""Weight of each new measurement in the exponential averages of load and service times."""

_QUARANTINE = RestartLimits(first_delay_s=2.0, max_delay_s=300.0)
_MIN_RELATIVE_CHANGE = 0.5
"""Relative change from which a service time is written to the shared memory: it changes with every request,
and the next process only starts from it."""

_MIN_SHRINK_PART = 0.1
"""Part of what a server holds; smaller surpluses are ignored, since what models take goes up and down by
itself."""

_NOTHING = Measured(0)
"""Record of a model of which nothing is known."""

_TEXT_BYTES = 2000
"""Upper bound of a remembered reason, which may be a whole stack trace."""


class Measurements:
    """Sizes, load times and failures of models as this process has measured them; those of another process
    may replace them (`recall`)."""

    def __init__(self, fleet: Fleet, *, now_s: Callable[[], float], today_s: Callable[[], float]) -> None:
        """`now_s` is the event loop's time, `today_s` seconds since 1970."""
        self.known: dict[str, Measured] = {}
        self._fleet = fleet
        self._now_s = now_s
        self._today_s = today_s
        self._loaded: dict[str, int] = {}
        """Model -> the most memory that a load in this process has shown. Smaller measurements are not
        believed: loaded into memory that the server has kept from another model, a model seems to take
        less."""

        self._changed_ns: dict[str, int] = {}
        """Model -> when its files were last changed, as of the last `describe`."""

    def record_of(self, model: str) -> Measured:
        """Return what is known of a model; an empty record if nothing is."""
        return self.known.get(model, _NOTHING)

    # The facts

    def describe(self, facts: ModelFacts, model: DescribedModel, *, fetch_s: float) -> None:
        """Bring a model's facts in line with its files and with what is known of it; a load takes `fetch_s`
        longer from its tier."""
        if self._changed_ns.setdefault(facts.name, model.changed_ns) != model.changed_ns:
            self._changed_ns[facts.name] = model.changed_ns
            # The changed files may have put right what made loads fail.
            self.forgive(facts.name)
        known = self._of_these_files(facts.name, model.file_bytes)
        estimate = model.file_bytes + PROCESS_BYTES * (1 + len(model.steps))
        # A loaded replica takes the memory of the files it was loaded from, even if those have been replaced
        # by smaller ones.
        held = facts.resident_bytes if self._fleet.replicas(facts.name) else 0
        measured = known.resident_bytes if known.resident_bytes is not None else max(estimate, held)
        facts.resident_bytes = measured if facts.spec.resident_bytes is None else facts.spec.resident_bytes
        facts.load_s = (FIRST_LOAD_S if known.load_s is None else known.load_s) + fetch_s

    def _of_these_files(self, model: str, file_bytes: int) -> Measured:
        """Return what is known of the model, but forget what was measured of other files (files of another
        size)."""
        known = self.record_of(model)
        if model in self.known and file_bytes not in (0, known.file_bytes):
            if known.file_bytes != 0:
                self.forgive(model)
                self._loaded.pop(model, None)
                # The outcome of an administrator's request is kept: somebody may still be waiting for it.
                known = Measured(0, answered=known.answered, refusal=known.refusal)
            known = self.known[model] = replace(known, file_bytes=file_bytes)
        return known

    def recall(self, model: str, known: Measured | None) -> None:
        """Take over what another process, or an earlier run, has measured; `describe` applies it to the
        facts, the quarantine applies at once."""
        if known is None:
            self.known.pop(model, None)
        else:
            self.known[model] = known
        if (facts := self._fleet.models.get(model)) is not None:
            self.quarantine(facts)

    def first_service_s(self, model: str) -> float:
        """Expected service time of a model before this process has seen it serve."""
        known_s = self.record_of(model).service_s
        return FIRST_SERVICE_S if known_s is None else known_s

    # Sizes and times

    def loaded(self, model: str, took_s: float, bytes_more: int | None) -> None:
        """Record a load of the model; `bytes_more` is the growth of the server's memory, None where that
        cannot be read."""
        facts, known = self._fleet.models[model], self.record_of(model)
        # The first load replaces the assumption; from the second on they are averaged.
        before_s = took_s if known.load_s is None else known.load_s
        facts.load_s = before_s + SMOOTHING * (took_s - before_s)
        self.known[facts.name] = replace(known, load_s=facts.load_s)
        if bytes_more is not None:
            self._loaded[model] = max(bytes_more, self._loaded.get(model, 0))
            self._raise_size(facts, bytes_more)

    def memory_measured(self, server: str, held_bytes: int) -> None:
        """Correct sizes by the memory of all models on a server together (`held_bytes`).

        Growth that is not explained is spread, in proportion, over the models whose owners declare no size,
        since nobody can tell which of them grew. It is taken back when the server turns out to hold less. A
        load that shows less than before takes nothing back: many models grow with their first requests, each
        time anew.
        """
        replicas = [replica for replica in self._fleet.servers[server].replicas.values() if not replica.is_step]
        # While something loads or unloads, the server's memory belongs to no known set of models.
        if any(replica.state is not ModelState.READY for replica in replicas):
            return
        grown = held_bytes - sum(replica.bytes for replica in replicas)
        undeclared = [
            facts for replica in replicas if (facts := self._fleet.models.get(replica.model)) and facts.spec.resident_bytes is None
        ]
        thought = sum(facts.resident_bytes for facts in undeclared)
        if grown > 0 and thought > 0:
            for facts in undeclared:
                self._raise_size(facts, facts.resident_bytes + int(grown * facts.resident_bytes / thought))
        # Only what was measured here and is in use is taken back: others may have yet to grow.
        elif -grown > _MIN_SHRINK_PART * held_bytes:
            self._take_back_excess(-grown, [self._fleet.models[replica.model] for replica in replicas if self._has_grown_fully(replica)])

    def _has_grown_fully(self, replica: Replica) -> bool:
        """Whether the replica is the model's only one, has been used, and a load of the model was measured:
        then it has grown as far as it will."""
        return replica.model in self._loaded and len(self._fleet.replicas(replica.model)) == 1 and replica.last_used_s > replica.since_s

    def _take_back_excess(self, excess: int, models: Sequence[ModelFacts]) -> None:
        """Take `excess` bytes back from these models, in proportion to what each was given beyond what its
        loads have shown."""
        shares = {
            facts.name: max(0, facts.resident_bytes - self._loaded[facts.name]) for facts in models if facts.spec.resident_bytes is None
        }
        part = min(1.0, excess / max(1, sum(shares.values())))
        for model, share in shares.items():
            facts = self._fleet.models[model]
            facts.resident_bytes -= int(share * part)
            self.known[model] = replace(self.record_of(model), resident_bytes=facts.resident_bytes)

    def note_reported_sizes(self, sizes: Mapping[str, int]) -> None:
        """Take over the sizes that a Triton reports of its models."""
        for model, size in sizes.items():
            if (facts := self._fleet.models.get(model)) is not None:
                self._raise_size(facts, size)

    def _raise_size(self, facts: ModelFacts, size: int) -> None:
        """Raise the known size of a model; nothing lowers it here, and a declared size stands."""
        known, size = self.record_of(facts.name), min(size, MAX_SIZE_BYTES)
        if facts.spec.resident_bytes is None and size > (known.resident_bytes or 0):
            facts.resident_bytes = size
            self.known[facts.name] = replace(known, resident_bytes=size)

    def note_service_time(self, model: str, service_s: float, count: int) -> None:
        """Take over the mean service time of `count` requests in another process, with the weight of as many
        measurements."""
        if (facts := self._fleet.models.get(model)) is not None:
            facts.service_s += weight_of(count) * (service_s - facts.service_s)

    def save_service_times(self) -> None:
        """Write the current service times into the records, where they differ enough from what is known."""
        for name, facts in self._fleet.models.items():
            before_s = self.first_service_s(name)
            if abs(facts.service_s - before_s) > _MIN_RELATIVE_CHANGE * before_s:
                self.known[name] = replace(self.record_of(name), service_s=facts.service_s)

    # Failures

    def failed(self, facts: ModelFacts, why: str, *, is_transient: bool = False, server: str = "", has_begun: bool = True) -> None:
        """Record a failed load on a server and quarantine the model, for longer each time. `is_transient` tells a failure
        that is no fault of its files, `has_begun` one that is not seen from its files."""
        if not is_transient and (at := self._fleet.servers.get(server)) is not None:
            self._fail_on(at, facts.name, has_begun=has_begun)
        known = self.record_of(facts.name)
        facts.failed_only_on = server if known.failures == 0 or facts.failed_only_on == server else ""
        # In wall-clock time, since the record outlives this process and its monotonic clock.
        until_s = self._today_s() + restart_delay_s(known.failures + 1, limits=_QUARANTINE)
        self.known[facts.name] = replace(
            known,
            failures=known.failures + 1,
            quarantined_until_s=until_s,
            why=_storable(why),
            is_on_trial=known.is_on_trial or (known.load_s is None and not is_transient),
        )
        self.quarantine(facts)

    def _fail_on(self, server: Server, model: str, *, has_begun: bool) -> None:
        now_s = self._now_s()
        lately = {name: at_s for name, at_s in server.failed_s.items() if name != model and now_s - at_s < LIMITS.avoids_failed_s}
        server.failed_s = {**lately, model: now_s}  # the last one is the latest
        suspects = server.failed_only_here | {model} if has_begun else server.failed_only_here
        server.failed_only_here = suspects & server.failed_s.keys()
        failed = [each for each in self._fleet.servers.values() if model in each.failed_s]
        if len(failed) > 1:  # so it is the model's fault, and none of theirs
            for each in failed:
                each.failed_only_here.discard(model)

    def pause(self, facts: ModelFacts, pause_s: float) -> None:
        """Do not load the model for a moment, after a failure that is no fault of its own."""
        facts.quarantined_until_s = self._now_s() + pause_s

    def begin_refusals(self, facts: ModelFacts) -> None:
        """Note that a request for the model is refused, unless one was before: placement bounds for how long
        that may go on."""
        if facts.refused_since_s == NEVER_S:
            facts.refused_since_s = self._now_s()

    def succeeded(self, facts: ModelFacts, server: Server) -> None:
        """Note that the model has been loaded on this server."""
        self._end_quarantine(facts.name)
        facts.refused_since_s = NEVER_S
        server.failed_s.pop(facts.name, None)
        server.failed_only_here.clear()

    def forgive(self, model: str) -> None:
        """Forget that the model's load has failed, and where: it may be tried again."""
        self._end_quarantine(model)
        for server in self._fleet.servers.values():
            server.failed_s.pop(model, None)
            server.failed_only_here.discard(model)

    def _end_quarantine(self, model: str) -> None:
        if (known := self.known.get(model)) is not None:
            self.known[model] = replace(known, failures=0, quarantined_until_s=0.0, why="", is_on_trial=False)
        if (facts := self._fleet.models.get(model)) is not None:
            facts.quarantined_until_s, facts.is_on_trial = NEVER_S, False

    def why_failed(self, model: str) -> str | None:
        """Why the last load failed; None if it did not, or has been forgiven."""
        known = self.record_of(model)
        return known.why if known.failures else None

    def why_quarantined(self, model: str) -> str | None:
        """Why the model is in quarantine; None if it is not."""
        facts = self._fleet.models.get(model)
        return self.why_failed(model) if facts is not None and facts.quarantined_until_s > self._now_s() else None

    def quarantine(self, facts: ModelFacts) -> None:
        """Apply what is known of a model's failures to its facts."""
        known = self.record_of(facts.name)
        facts.is_on_trial = known.is_on_trial
        # Bounded, since the record may be another machine's, whose clock may be wrong.
        left_s = min(known.quarantined_until_s - self._today_s(), _QUARANTINE.max_delay_s)
        facts.quarantined_until_s = self._now_s() + left_s if left_s > 0 else NEVER_S

    # What others asked for

    def answer(self, model: str, asked: str, refusal: str) -> None:
        """Record that the administrator's request `asked` has been carried out, or why it was refused."""
        self.known[model] = replace(self.record_of(model), answered=asked, refusal=_storable(refusal))


def weight_of(count: int) -> float:
    """Weight of the mean of `count` measurements in an exponential average: that of as many single ones."""
    return 1.0 - (1.0 - SMOOTHING) ** count


def _storable(text: str) -> str:
    """Bound a text, and replace what UTF-8 cannot encode, so that every store can write it."""
    return text.encode(errors="replace")[:_TEXT_BYTES].decode(errors="replace")
