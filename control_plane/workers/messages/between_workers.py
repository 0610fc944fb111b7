"""Messages of a worker to the other workers of its gateway, which the parent process forwards."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Base64Bytes

from control_plane.fleet.domain.leadership.report import LoadReport
from control_plane.inference.domain.queries_of_death import Finding, Record


@dataclass(frozen=True, slots=True)
class FindingShared:
    """Finding of a worker about a request under which a process died; the parent forwards it to the other
    workers. Times are on the machine's monotonic clock."""

    model: str
    digest: Base64Bytes
    record: Record | None
    is_stub: bool = False

    @classmethod
    def of(cls, finding: Finding) -> FindingShared:
        return cls(*finding.digest, finding.record, finding.is_stub)

    @property
    def finding(self) -> Finding:
        return Finding((self.model, self.digest), self.record, self.is_stub)


@dataclass(frozen=True, slots=True)
class HangSuspected:
    """A replica may hang in a request: equal ones wait until then, on the machine's monotonic clock; 0: no longer."""

    model: str
    digest: Base64Bytes
    until_s: float


@dataclass(frozen=True, slots=True)
class LoadReported:
    """A worker's load report in a fleet; the parent forwards it to the other workers without its wanted
    models."""

    report: LoadReport
