from __future__ import annotations

from typing import get_args

import pytest

from control_plane.core.endpoints import TritonEndpoints, TritonSockets
from control_plane.core.infer_call import Frontend, Outcome
from control_plane.core.model import ModelState
from control_plane.fleet.domain.leadership.report import LoadReport, ReplicaUse, Wanted
from control_plane.fleet.domain.snapshot import ModelSnapshot, ReplicaSnapshot, ServerSnapshot
from control_plane.inference.domain.observation import Observation
from control_plane.inference.domain.queries_of_death import Record, Verdict
from control_plane.models.domain.description import ModelSpec, Tier
from control_plane.telemetry.request_counts import DurationHistogram, OutcomeCount, RequestCounts
from control_plane.triton.compute_time import OpenCharge
from control_plane.workers.codec import LENGTH_BYTES, decode, encode
from control_plane.workers.messages import FromWorker, Message, ToWorker
from control_plane.workers.messages.between_workers import FindingShared, HangSuspected, LoadReported
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

MESSAGES: list[Message] = [
    Configure(3, {"gateway": {"http_port": 8000}}, 15, 16, 17, None),
    UpstreamUp(TritonEndpoints("127.0.0.1", 1, 2, None)),
    UpstreamUp(TritonEndpoints("127.0.0.1", 1, 2, 3, "secret")),
    UpstreamDown("Triton has ended"),
    UnderRepair({"a": 12.5}),
    UnderRepair({}),
    UpstreamUp(TritonEndpoints("::1", 1, 2, 3, "secret"), "triton-1"),
    UpstreamUp(TritonSockets("/state/sockets/1.x", "secret")),
    UpstreamDown("it has left", "triton-1"),
    UpstreamSilence(is_silent=True, server="triton-1"),
    ServersChanged({"triton-1": ServerSnapshot(2**40, "long", {"zone": "b"}, is_draining=True), "triton-2": None}),
    ReplicasChanged("triton-1", {}),
    ReplicasChanged(
        "triton-1",
        {
            "a": ReplicaSnapshot(7, ModelState.LOADING, 2**33, 1.5, 2.25, is_dead=True, hangs=True),
            "b": ReplicaSnapshot(8, ModelState.READY, 0, 1.5, None, is_step=True),
        },
    ),
    ModelsChanged({"a": ModelSnapshot(ModelSpec("a", 5, 1, 2, 3, 0.1, {"zone": "b"}), Tier.COLD, 5, 2.0, 0.01), "gone": None}),
    ModelsChanged({"b": ModelSnapshot(ModelSpec("b"), Tier.WARM, 5, 2.0, 0.01, True, True, 3, 1.7e9, "its weights are missing")}),
    LoadReported(LoadReport("w1")),
    LoadReported(LoadReport("w1", {"a": 2}, {"a": 0.1}, {"[::1]:1": {"a": ReplicaUse(1, 2)}}, (Wanted("a", 1, "long"),), ("[::1]:1",))),
    Listen(),
    ReadIndex(4, "s0"),
    IndexRead(4, [("m", "1", "READY", "")]),
    IndexRead(4, None, "why"),
    RelyUntil(12.5),
    RelyUntil(None),
    ReloadTls(),
    CollectCharges(7),
    DrawTokens(8, "t\u00e4", 0.5, 3.0, 2, -1),
    TokensDrawn(8, 1, 2.5),
    Charges([], 7),
    SilenceSuspected("triton-1", "a", 12.5),
    FindingShared("a", bytes(range(224, 256)), Record(("triton-0", "triton-1"), 72.5, Verdict.GUILTY), is_stub=True),
    FindingShared("a", b"d", None),
    HangSuspected("a", b"d", 12.5),
    AskTurn(3, "a"),
    TurnGiven(3),
    EndTurn(3, True),
    Charges([OpenCharge("t", "e", "m", 2.0, 20.5, 1.0, 3.0, 0.5)]),
    ArmsObserved([Observation("r", "0123456789abcdef" * 2, True, 2**64 - 1, False, 0.25)]),
    RolloutGivenUp("0123456789abcdef" * 2),
    WatchRequests(True),
    CollectFor(["t\u00e4"]),
    TenantEvents("t", "0123abcd", 2**40, ['{"id": "x"}']),
    TenantEvents("t", "0123abcd", 1, [], begins=True, more=True),
    FollowTenants([]),
    FollowTenants(["t"]),
    TenantsTold([("t", "request.ended", 1.7e9, "{}")]),
    RequestsEnded(['{"id": "é"}']),
    AnnounceDrain(),
    Drain(4.5),
    Changed(1),
    Changed(2, "load_failed", "b\u00e4d \u2028 weights", 3),
    FingerprintsChanged(4, {}),
    FingerprintsChanged(5, {"a": (bytes(range(224, 256)), True, True, False), "b": None}),
    Listening(),
    Alive(),
    Alive((("triton-0", "a", 12.5),), (("triton-1", "a", 0.25),), (("triton-1", "b"),)),
    WorkedOnElsewhere((("triton-0", "a", 12.5),)),
    Drained(),
    StartFailed("why"),
    FingerprintsAcknowledged(5),
    CountsReported(
        RequestCounts(
            (OutcomeCount("a", Frontend.HTTP, Outcome.ANSWERED, 2**40),), (DurationHistogram("a", Frontend.GRPC, (1, 0), 0.25),), 7
        ),
        ("usage cannot be stored",),
    ),
    LoadModel(1, "a"),
    LoadModel(1, "a", "{}", {"file:1/model.py": bytes(range(256)) * 300}),
    LoadModel(1, "a", None, {}),
    UnloadModel(1, "a", True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_sent_is_what_is_received(message: Message) -> None:
    frame = encode(message)
    assert int.from_bytes(frame[:LENGTH_BYTES]) == len(frame) - LENGTH_BYTES
    assert decode(frame[LENGTH_BYTES:]) == message


def test_every_kind_is_tried_above() -> None:
    assert {type(message) for message in MESSAGES} == {*get_args(ToWorker), *get_args(FromWorker)}
