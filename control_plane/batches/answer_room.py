"""Room for the answers of open batches: they are in the spool until their batch has ended, and then in its output file.

A tenant's files, the inputs of his open batches and their answers are bounded together. Beyond that no more jobs are made for his
batches until he deletes something: what was accepted waits, and is not lost. His oldest batch waits for what he can delete only,
not for other answers that are on their way, or two half-done ones would wait for each other. So the bound is passed by the answers
of one batch at most, and of the chunks that are open. Used by `batches/batches`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from control_plane.batches.domain.batch import Batch
from control_plane.batches.domain.output_lines import ChunkEnd
from control_plane.batches.files import Files

_LINE_BYTES = 8 << 10
"""Answer to a line before a batch has any: an embedding of 384 numbers."""
_LOOK_S = 2.0
"""Age from which the sizes of a tenant's files are looked at again: there may be ten thousand."""


@dataclass(slots=True)
class OpenBatch:
    """Knowledge of this process about an open batch: the chunks that have ended, which do not change any more, and those that
    were open when it last looked at all.
    """

    batch: Batch
    ends: dict[int, ChunkEnd] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    rests_until_s: float = 0.0
    """When the batch is looked at again after a defect."""
    waits: bool = False
    """Whether its next job is not made since there is no room for more answers."""

    @property
    def answer_bytes(self) -> int:
        """Size of its answers, those of the chunks that are open estimated by those that there are."""
        return sum(end.size_bytes for end in self.ends.values()) + len(self.open) * self.chunk_bytes

    @property
    def chunk_bytes(self) -> int:
        """Size of a chunk's answers, as far as that is known."""
        known = [end.size_bytes for end in self.ends.values() if end.size_bytes]
        return sum(known) // len(known) if known else self.batch.lines * _LINE_BYTES // len(self.batch.chunks)


class AnswerRoom:
    """Room for answers, of all tenants, as one process counts it."""

    def __init__(self, files: Files, today_s: Callable[[], float]) -> None:
        self._files, self._today_s = files, today_s
        self._open: Mapping[str, OpenBatch] = {}
        self._answers: dict[str, int] = {}
        """Bytes of each tenant's answers, as of the present look at the open batches."""
        self._filled: dict[str, tuple[int, float]] = {}
        """Bytes of each tenant's files, and when they were counted."""

    def begin(self, known: Mapping[str, OpenBatch]) -> None:
        """Begin a look at the open batches, the oldest first."""
        self._open = known
        self._answers = {}
        self._filled = {tenant: found for tenant, found in self._filled.items() if abs(self._today_s() - found[1]) < _LOOK_S}

    def answer_bytes(self, tenant: str) -> int:
        """Return the bytes of the answers of a tenant's open batches."""
        return sum(each.answer_bytes for each in self._open.values() if each.batch.tenant == tenant)

    async def take(self, known: OpenBatch) -> bool:
        """Take room for the answers of one more chunk, if there is any. Raises StoreUnavailable."""
        tenant = known.batch.tenant
        if tenant not in self._filled:
            self._filled[tenant] = await self._files.filled_bytes(tenant), self._today_s()
        if tenant not in self._answers:
            self._answers[tenant] = self.answer_bytes(tenant)
        oldest = next(each for each in self._open.values() if each.batch.tenant == tenant)
        used = self._filled[tenant][0] + (0 if known is oldest else self._answers[tenant])
        known.waits = used >= self._files.max_bytes
        if not known.waits:
            self._answers[tenant] += known.chunk_bytes
        return not known.waits
