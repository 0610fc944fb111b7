"""Memory that the processes of a server hold, of the machine and of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Reading of the memory of a server: Triton and all it started."""

    host_bytes: int
    """Main memory, shared pages in proportion."""
    gpu_bytes: int | None = None
    """GPU memory; None where it cannot be read, or there is no GPU."""

    def more_than(self, before: HeldMemory) -> int | None:
        """Return by how much a server has grown since an earlier reading, negative if it shrank; None if only one
        of the two has GPU memory.

        It is the larger growth of the two kinds: a sum of these over models is at least what they take of
        either kind, so that one budget bounds both.
        """
        host_bytes = self.host_bytes - before.host_bytes
        if self.gpu_bytes is None and before.gpu_bytes is None:
            return host_bytes
        if self.gpu_bytes is None or before.gpu_bytes is None:
            return None
        return max(host_bytes, self.gpu_bytes - before.gpu_bytes)
