"""Slots for large bodies that are being received: bodies of jobs (`jobs/jobs`) and files of batches (`batches/files`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from control_plane.core.errors import LimitExceeded, Overloaded

MAX_UPLOADS, MAX_UPLOADS_OF_TENANT = 256, 32
"""Large bodies that are received at a time: while the disk is behind each holds half a megabyte, which no other bound counts."""
_RETRY_AFTER_S = 5.0


class UploadSlots:
    """Bound on how many large bodies one process receives at a time, of each tenant and in all."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    @contextmanager
    def take(self, tenant: str) -> Iterator[None]:
        """Hold a slot within the block. Raises LimitExceeded: the tenant has as many as it may. Overloaded: all together have."""
        if self._taken[tenant] >= MAX_UPLOADS_OF_TENANT:
            raise LimitExceeded(f"this tenant sends {MAX_UPLOADS_OF_TENANT} large bodies already", retry_after_s=_RETRY_AFTER_S)
        if self._taken.total() >= MAX_UPLOADS:
            raise Overloaded(f"{MAX_UPLOADS} large bodies are being received already; try again later")
        self._taken[tenant] += 1
        try:
            yield
        finally:
            self._taken[tenant] -= 1
            self._taken += Counter()  # drops those without any
