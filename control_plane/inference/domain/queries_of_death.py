"""Queries of death: requests that kill the process that computes them, on whichever replica they run.

Every request that was in flight when a process died is suspect. A suspect is sent alone, so a second death shows that it was
the cause: then it is refused for a while, which spares the other replicas. An answer clears it. Only a request that was sent
alone as a suspect is blamed for a second death, since servers that die together were working on the same requests.

Pure; called by `inference/retries/queries_of_death`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

REMEMBERED_S = 60.0
"""Time for which a suspect is remembered, and for which a query of death is refused."""
_MOST = 4096
"""Most requests that are remembered; callers decide how many there are."""

Digest = tuple[str, bytes]
"""A request: its model, and the digest of what is computed from."""

ONE_BATCH_S = 0.5
"""Triton says of every request that it sends to a dead stub that this is so, a second after it was sent: within this
time of the first answer it is of those that the stub was computing."""
_REVIVED_S = 5.0
"""Time without such an answer after which the stub has been revived, and has died anew, if nobody tells of another
copy."""


class Verdict(Enum):
    """Verdict on a request under which processes died."""

    SUSPECT = auto()
    """A process died while it was in flight."""
    GUILTY = auto()
    """Another died, to which it was sent alone."""


@dataclass(frozen=True, slots=True)
class Record:
    """Record of one request that is not innocent."""

    deaths: tuple[str, ...]
    """Servers whose processes died under it, in order."""
    until_s: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of one process about a request, for the others of its gateway."""

    digest: Digest
    record: Record | None
    """None: it was answered as a suspect, so it is innocent."""
    is_stub: bool = False
    """Whether a stub died under it, rather than a server."""


class Suspects:
    """List of the requests under which processes died, bounded in time and number."""

    def __init__(self) -> None:
        self._records: OrderedDict[Digest, Record] = OrderedDict()
        self.models: dict[str, float] = {}
        """Model -> until when there may be records of its requests."""

    def watches(self, model: str, now_s: float) -> bool:
        """Whether any of the model's requests may be on the list."""
        until_s = self.models.get(model)
        if until_s is None:
            return False
        if now_s >= until_s:
            del self.models[model]
            return False
        return True

    def record(self, digest: Digest, now_s: float) -> Record | None:
        """What is known of a request; None where it is innocent."""
        found = self._records.get(digest)
        if found is not None and now_s >= found.until_s:
            del self._records[digest]
            return None
        return found

    def died(self, digest: Digest, server: str, now_s: float, *, was_suspect: bool) -> Record:
        """Note that a process of `server` died while the request was in flight; `was_suspect`: it was sent as one."""
        before, until_s = self.record(digest, now_s), now_s + REMEMBERED_S
        if before is None:
            after = Record((server,), until_s, Verdict.SUSPECT)
        elif was_suspect:
            after = Record((*before.deaths, server), until_s, Verdict.GUILTY)
        else:
            after = Record(before.deaths, until_s, before.verdict)
        self._keep(digest, after)
        return after

    def learn(self, digest: Digest, record: Record | None, now_s: float) -> None:
        """Take over what another process has found out. Who is guilty stays guilty."""
        before = self.record(digest, now_s)
        if before is not None and before.verdict is Verdict.GUILTY:
            return
        if record is None:
            self.answered(digest)
        elif now_s < record.until_s and (before is None or record.verdict is Verdict.GUILTY):
            self._keep(digest, record)

    def guilty(self, now_s: float) -> dict[Digest, Record]:
        """Return those that are refused now."""
        return {digest: known for digest, known in self._records.items() if known.verdict is Verdict.GUILTY and now_s < known.until_s}

    def _keep(self, digest: Digest, record: Record) -> None:
        self._records[digest] = record
        self._records.move_to_end(digest)
        self.models[digest[0]] = max(record.until_s, self.models.get(digest[0], record.until_s))
        while len(self._records) > _MOST:
            self._records.popitem(last=False)

    def answered(self, digest: Digest) -> None:
        """Note that a suspect has been answered: it was not the cause. Who is guilty stays so, whichever of equal requests was
        answered, and when its turn is over that had no end before."""
        if (known := self._records.get(digest)) is not None and known.verdict is not Verdict.GUILTY:
            del self._records[digest]


class StubDeaths:
    """Register of dead stubs, which tells requests that a stub was computing when it died from those that came to the dead stub."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], tuple[object, float, float]] = {}
        """(Server, model) -> the copy whose stub died there, and when that was told first and last."""

    def was_in_flight(self, server: str, model: str, copy: object, *, began_s: float, now_s: float) -> bool:
        """Note an answer that this copy's stub has died; whether its request, sent at `began_s`, may be the cause. Copies
        are told apart by equality."""
        died, first_s, last_s = self._told.get((server, model), (None, now_s, now_s))
        is_first = died != copy or now_s - last_s > _REVIVED_S
        self._told[server, model] = copy, now_s if is_first else first_s, now_s
        return is_first or (began_s < first_s and now_s - first_s <= ONE_BATCH_S)

    def was_dead(self, server: str, model: str, copy: object, *, at_s: float) -> bool:
        """Whether this copy's stub was known to be dead by then."""
        died, first_s, _ = self._told.get((server, model), (None, 0.0, 0.0))
        return died == copy and at_s >= first_s

    def dead_copies(self, model: str) -> Iterator[tuple[str, object]]:
        """The copies of a model whose stubs have died, by server, as far as they were told."""
        for (server, died), (copy, _, _) in self._told.items():
            if died == model:
                yield server, copy
