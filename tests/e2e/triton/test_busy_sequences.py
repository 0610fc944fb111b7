"""Sequences under way at a real Triton whose places for sequences are all taken, while more want to start than the model has slots."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from tests.contract.conftest import MODELS
from tests.e2e import raw_http
from tests.e2e.conftest import Start
from tests.e2e.telemetry.test_metrics import metric
from tests.e2e.tidegate import COMPLETE, Tidegate, wait_for

UNDER_WAY = 4
"""As many sequences as the model takes at a time (`max_candidate_sequences`)."""
SLOTS = 4


def body(sequence: int, value: int, **flags: bool) -> bytes:
    tensor = {"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [value]}
    return json.dumps({"inputs": [tensor], "parameters": {"sequence_id": sequence, **flags}}).encode()


def over_http(gateway: Tidegate, sequence: int, value: int, **flags: bool) -> int:
    raw = raw_http.exchange(gateway.port("http"), "POST", "/v2/models/accumulate/infer", body(sequence, value, **flags))
    assert raw_http.status(raw) == 200, raw
    return next(int(each["data"][0]) for each in json.loads(raw.partition(b"\r\n\r\n")[2])["outputs"] if each["name"] == "SUM")


def start_without_reading(gateway: Tidegate, sequence: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", gateway.port("http")))
    sent = body(sequence, 1, sequence_start=True)
    head = b"POST /v2/models/accumulate/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(sent)
    connection.sendall(head + sent)
    return connection


def over_grpc(gateway: Tidegate, sequence: int, value: int, *, streamed: bool) -> int:
    tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    with tritonclient.grpc.InferenceServerClient(gateway.address("grpc")) as client:
        if not streamed:
            return int(client.infer("accumulate", [tensor], sequence_id=sequence).as_numpy("SUM").item())
        answers: list[int | str] = []
        client.start_stream(lambda result, error: answers.append(str(error) if error else int(result.as_numpy("SUM").item())))
        client.async_stream_infer("accumulate", [tensor], sequence_id=sequence)
        client.stop_stream()  # waits for the answer
        return int(answers[0])


def test_a_sequence_goes_on_while_others_wait_for_their_start(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_MAX_UPSTREAM_CONNECTIONS", str(2 * SLOTS))
    gateway = start(tmp_path, "--model-repository", str(MODELS), COMPLETE, "--load", "accumulate")
    for sequence in range(1, UNDER_WAY + 1):
        assert over_http(gateway, sequence, sequence, sequence_start=True) == sequence
    waiting = [start_without_reading(gateway, 100 + number) for number in range(SLOTS + 1)]
    wait_for(lambda: metric(gateway, "tidegate_requests_in_flight") == SLOTS + 1, what="the starts in flight")

    assert over_http(gateway, 1, 10) == 11
    assert over_grpc(gateway, 2, 10, streamed=False) == 12
    assert over_grpc(gateway, 3, 10, streamed=True) == 13

    for sequence in range(1, UNDER_WAY + 1):  # which makes room for those that wait
        over_http(gateway, sequence, 0, sequence_end=True)
    for connection in waiting[:UNDER_WAY]:
        connection.settimeout(60.0)
        assert raw_http.status(raw_http.read_answer(connection)) == 200
    for connection in waiting:
        connection.close()
