"""What services need of the world outside; adapters implement these, tests have fakes of them.

Adapters translate their client's exceptions into `domain.errors`; an answer of Triton's, good or bad, is a value.
"""

from __future__ import annotations

from control_plane.ports.models import (
    FingerprintBoard,
    FleetMemory,
    LeaseStore,
    ModelAdministration,
    ModelCosts,
    ModelDescriptions,
    ModelReading,
    ModelRepository,
    ModelStore,
    MoveObserver,
    OwnerLine,
    PartialCopy,
    ServerList,
    Stop,
    WarmTier,
)
from control_plane.ports.processes import LoadGenerator, TuningServers, WorkerLauncher, WorkerProcess
from control_plane.ports.stores import (
    DemandBoard,
    RequestLog,
    RequestRecorder,
    SharedCache,
    StateStore,
    TokenVerifier,
    UsageSpill,
    UsageStore,
)
from control_plane.ports.triton import (
    Connect,
    GrpcCall,
    GrpcStream,
    GrpcUpstream,
    HttpStream,
    HttpUpstream,
    ModelControl,
    ModelStatisticsSource,
    TritonLauncher,
    TritonProcess,
    Upstream,
)

__all__ = [
    "Connect",
    "DemandBoard",
    "FingerprintBoard",
    "FleetMemory",
    "GrpcCall",
    "GrpcStream",
    "GrpcUpstream",
    "HttpStream",
    "HttpUpstream",
    "LeaseStore",
    "LoadGenerator",
    "ModelAdministration",
    "ModelControl",
    "ModelCosts",
    "ModelDescriptions",
    "ModelReading",
    "ModelRepository",
    "ModelStatisticsSource",
    "ModelStore",
    "MoveObserver",
    "OwnerLine",
    "PartialCopy",
    "RequestLog",
    "RequestRecorder",
    "ServerList",
    "SharedCache",
    "StateStore",
    "Stop",
    "TokenVerifier",
    "TritonLauncher",
    "TritonProcess",
    "TuningServers",
    "Upstream",
    "UsageSpill",
    "UsageStore",
    "WarmTier",
    "WorkerLauncher",
    "WorkerProcess",
]
