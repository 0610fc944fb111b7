from __future__ import annotations

from typing import get_args

import pytest

from control_plane.codec.worker_message import (
    LENGTH_BYTES,
    Begin,
    CannotBegin,
    Changed,
    Counted,
    Drain,
    FingerprintsChanged,
    FingerprintsTaken,
    FromWorker,
    Listen,
    Listening,
    LoadModel,
    Message,
    ReloadTls,
    ToWorker,
    UnloadModel,
    UpstreamDown,
    UpstreamUp,
    decode,
    encode,
)
from control_plane.domain.endpoints import TritonEndpoints
from control_plane.domain.inference import Door, Outcome
from control_plane.domain.request_counts import Ended, RequestCounts, Took

MESSAGES: list[Message] = [
    Begin(3, {"gateway": {"http_port": 8000}}, 17, None),
    UpstreamUp(TritonEndpoints("127.0.0.1", 1, 2, None)),
    UpstreamUp(TritonEndpoints("127.0.0.1", 1, 2, 3, "secret")),
    UpstreamDown("Triton has ended"),
    Listen(),
    ReloadTls(),
    Drain(4.5),
    Changed(1),
    Changed(2, "load_failed", "b\u00e4d \u2028 weights", 3),
    FingerprintsChanged(4, {}),
    FingerprintsChanged(5, {"a": (bytes(range(224, 256)), True, True), "b": None}),
    Listening(),
    CannotBegin("why"),
    FingerprintsTaken(5),
    Counted(RequestCounts((Ended("a", Door.HTTP, Outcome.ANSWERED, 2**40),), (Took("a", Door.GRPC, (1, 0), 0.25),), 7)),
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
