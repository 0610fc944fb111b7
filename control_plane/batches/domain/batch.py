"""Files and batches of OpenAI's API; pure values, each written once and never changed.

A batch is cut into chunks of lines, and each chunk becomes one job (`jobs/domain/job`). All that is known of a batch's
progress follows from those jobs' records, so nothing is counted that could be counted twice.
Source: https://platform.openai.com/docs/api-reference/batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

EMBEDDINGS = "/v1/embeddings"
"""The endpoint that batches are for, and the target of the jobs that they become."""


class BatchState(StrEnum):
    """State of a batch, in OpenAI's words."""

    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    """Lines that are being computed end first."""
    COMPLETED = "completed"
    """Each line was computed, with success or an error."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Its window closed before all lines were computed."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of one tenant. Times are seconds since 1970."""

    id: str
    tenant: str
    filename: str
    purpose: str
    size_bytes: int
    created_s: float
    model: str = ""
    """Model of the batch that has written it; empty for an uploaded file."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines of a batch that are computed as one job: `start` to `end` are their bytes in the input file."""

    lines: int
    start: int
    end: int


class Chunks:
    """Chunks of one batch, packed as three numbers each: there may be more than a thousand, and a thousand open batches of each
    tenant are in memory."""

    __slots__ = ("_numbers",)

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._numbers = array("q", [number for chunk in chunks for number in (chunk.lines, chunk.start, chunk.end)])

    def __len__(self) -> int:
        return len(self._numbers) // 3

    def __getitem__(self, number: int) -> Chunk:
        """Return a chunk by its number, which counts from 0. Raises IndexError."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        return Chunk(*self._numbers[3 * number : 3 * number + 3])

    def __iter__(self) -> Iterator[Chunk]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chunks) and self._numbers == other._numbers

    __hash__ = None  # type: ignore[assignment]

    @property
    def lines(self) -> int:
        return sum(self._numbers[::3])


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it was created."""

    id: str
    tenant: str
    key_id: str
    scopes: tuple[str, ...]
    """The caller's scopes at that time: what was accepted is answered, whatever becomes of the key."""
    input_file_id: str
    model: str
    chunks: Chunks
    metadata: dict[str, str] | None
    created_s: float
    expires_s: float
    webhook: str = ""
    """URL that is told of its end; empty: none is."""

    @property
    def lines(self) -> int:
        return self.chunks.lines

    def job_id(self, chunk: int) -> str:
        """Return the id of a chunk's job: the same whoever makes it, so that there is only one."""
        return f"job-{_digest(f'{self.id} {chunk}')}"

    @property
    def output_file_id(self) -> str:
        return f"file-{_digest(f'{self.id} output')}"

    @property
    def error_file_id(self) -> str:
        return f"file-{_digest(f'{self.id} errors')}"


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a batch."""

    state: BatchState
    ended_s: float
    completed: int
    failed: int
    has_output: bool
    has_errors: bool


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]
