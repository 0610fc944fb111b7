"""Messages between the parent process and its workers; `workers/codec` frames them.

They run between processes of one version on one machine, over a socket pair that nobody else holds, so the
protocol has no version and is not negotiated.
"""

from __future__ import annotations

from control_plane.workers.messages.between_workers import (
    FindingShared,
    HangSuspected,
    LoadReported,
)
from control_plane.workers.messages.from_workers import (
    Alive,
    ArmsObserved,
    AskTurn,
    Charges,
    CountsReported,
    Drained,
    DrawTokens,
    EndTurn,
    FingerprintsAcknowledged,
    FollowTenants,
    Listening,
    LoadModel,
    ReadIndex,
    RequestsEnded,
    SilenceSuspected,
    StartFailed,
    TenantsTold,
    UnloadModel,
)
from control_plane.workers.messages.to_workers import (
    AnnounceDrain,
    Changed,
    CollectCharges,
    CollectFor,
    Configure,
    Drain,
    FingerprintsChanged,
    IndexRead,
    Listen,
    ModelsChanged,
    ReloadTls,
    RelyUntil,
    ReplicasChanged,
    RolloutGivenUp,
    ServersChanged,
    TenantEvents,
    TokensDrawn,
    TurnGiven,
    UnderRepair,
    UpstreamDown,
    UpstreamSilence,
    UpstreamUp,
    WatchRequests,
    WorkedOnElsewhere,
)

ToWorker = (
    Configure
    | UpstreamUp
    | UpstreamDown
    | UnderRepair
    | UpstreamSilence
    | ServersChanged
    | ReplicasChanged
    | ModelsChanged
    | LoadReported
    | WorkedOnElsewhere
    | FindingShared
    | HangSuspected
    | TurnGiven
    | Listen
    | ReloadTls
    | CollectCharges
    | TokensDrawn
    | AnnounceDrain
    | Drain
    | Changed
    | FingerprintsChanged
    | RelyUntil
    | IndexRead
    | RolloutGivenUp
    | WatchRequests
    | CollectFor
    | TenantEvents
)
FromWorker = (
    Listening
    | Alive
    | Drained
    | StartFailed
    | CountsReported
    | Charges
    | ArmsObserved
    | RequestsEnded
    | FollowTenants
    | TenantsTold
    | DrawTokens
    | LoadReported
    | FindingShared
    | HangSuspected
    | AskTurn
    | EndTurn
    | SilenceSuspected
    | LoadModel
    | UnloadModel
    | ReadIndex
    | FingerprintsAcknowledged
)
Message = ToWorker | FromWorker
