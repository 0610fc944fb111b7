"""Bound on the part of this region's requests that another region gets. Pure; called by `regions/domain/standing`."""

from __future__ import annotations

from dataclasses import dataclass, field

_MOST = 20.0
"""Requests, at a share of one, that may be sent at once after a quiet time."""


@dataclass(slots=True)
class Credit:
    """Token bucket that fills with requests instead of time: each one asked here adds `share`, each one sent takes one."""

    share: float
    _saved: float = field(init=False)

    def __post_init__(self) -> None:
        self._saved = self.share * _MOST

    def asked(self) -> None:
        """Note a request that was asked here."""
        self._saved = min(max(1.0, self.share * _MOST), self._saved + self.share)

    @property
    def is_spent(self) -> bool:
        """Whether no request may be sent now."""
        return self._saved < 1.0

    def spend(self) -> None:
        """Note a request that is sent."""
        self._saved -= 1.0
