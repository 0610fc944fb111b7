"""What Triton says reaches the client byte for byte; what would hurt Triton never reaches it."""

from __future__ import annotations

import gzip
import json
import socket
import struct
from typing import Any

import pytest

from tests.e2e import raw_http
from tests.e2e.tidegate import Tidegate, descendants, wait_for


def fp32(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", "data": [1, 2.5, -3, 4e10], **changes}]}


def binary(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    return {"inputs": [{"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}]}


BOTH = {"outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}
STRINGS = struct.pack("<I", 2) + b"ab" + struct.pack("<I", 0)

SAME_BYTES = [
    pytest.param("GET", "/v2", b"", id="server metadata"),
    pytest.param("GET", "/v2/health/ready", b"", id="ready"),
    pytest.param("GET", "/v2/models/echo", b"", id="model metadata"),
    pytest.param("GET", "/v2/models/echo/versions/1", b"", id="version's metadata"),
    pytest.param("GET", "/v2/models/echo/config", b"", id="config"),
    pytest.param("GET", "/v2/models/echo/ready", b"", id="model ready"),
    pytest.param("GET", "/v2/models/nowhere/ready", b"", id="unknown model is not ready"),
    pytest.param("GET", "/v2/models/nowhere", b"", id="unknown model's metadata"),
    pytest.param("POST", "/v2/repository/index", b"", id="index"),
    pytest.param("POST", "/v2/models/echo/infer", json.dumps(fp32()).encode(), id="infer json"),
    pytest.param("POST", "/v2/models/echo/versions/1/infer", json.dumps({**fp32(), "id": "x:1"}).encode(), id="version and id"),
    pytest.param("POST", "/v2/models/echo/versions/9/infer", json.dumps(fp32()).encode(), id="unknown version"),
    pytest.param("POST", "/v2/models/echo/infer", json.dumps({**fp32(), **BOTH}).encode(), id="binary output"),
    pytest.param("POST", "/v2/models/echo/infer", b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[NaN]}]}', id="NaN"),
    pytest.param("POST", "/v2/models/echo/infer", json.dumps(fp32(datatype="INT32")).encode(), id="wrong dtype"),
    pytest.param("POST", "/v2/models/echo/infer", json.dumps(fp32(shape=[4])).encode(), id="wrong rank"),
    pytest.param("POST", "/v2/models/echo/infer", b"{}", id="no inputs"),
]


@pytest.mark.parametrize(("method", "path", "body"), SAME_BYTES)
def test_answers_are_tritons_own(tidegate: Tidegate, method: str, path: str, body: bytes) -> None:
    straight = raw_http.exchange(tidegate.triton_port("HTTPService"), method, path, body, tidegate.control_fields())
    assert raw_http.exchange(tidegate.port("http"), method, path, body) == straight


REFUSED = [
    pytest.param(b'{"inputs": [}', b"", 500, "failed to parse", id="malformed JSON"),
    pytest.param(b"[" * 100_000, b"", 500, "failed to parse", id="too deep"),
    pytest.param(fp32(datatype="FP99"), b"", 400, "invalid datatype", id="unknown dtype"),
    pytest.param(fp32(shape=[1, -4]), b"", 500, "unsigned", id="negative dimension"),
    pytest.param(fp32(shape=[2**32, 2**32]), b"", 400, "more elements", id="size overflows 64 bits"),
    pytest.param(fp32(shape=[1, 300_000_000]), b"", 400, "takes 300000000 elements, got 4", id="claims far more than it sends"),
    pytest.param(fp32(data=[1, 2]), b"", 400, "takes 4 elements, got 2", id="too few values"),
    pytest.param(binary("INPUT0", "FP32", [1, 4], 12), b"\0" * 12, 400, "Expected 16, got 12", id="binary too short"),
    pytest.param(binary("INPUT0", "FP32", [1, 4], 16), b"\0" * 12, 400, "expecting 4 additional bytes", id="body too short"),
    pytest.param(binary("INPUT0", "FP32", [1, 4], 16), b"\0" * 20, 400, "unexpected additional", id="body too long"),
    pytest.param(
        binary("INPUT1", "BYTES", [1, 1], 8), struct.pack("<I", 2**31) + b"abcd", 400, "incomplete string data", id="BYTES prefix"
    ),
    pytest.param(binary("INPUT1", "BYTES", [1, 3], 10), STRINGS, 400, "expected 3 string elements", id="BYTES count"),
    pytest.param(binary("INPUT1", "BYTES", [1, 1], 3), b"\1\0\0", 400, "incomplete string length", id="BYTES cut off"),
]


@pytest.mark.parametrize(("header", "data", "status", "says"), REFUSED)
def test_what_would_hurt_triton_stops_at_the_door(tidegate: Tidegate, header: Any, data: bytes, status: int, says: str) -> None:
    before = descendants(tidegate.process.pid)
    answer = raw_http.infer(tidegate.port("http"), "echo", header, data)
    assert (raw_http.status(answer), says in raw_http.error(answer)) == (status, True), answer
    assert descendants(tidegate.process.pid) == before, "a process of Triton's ended"
    assert raw_http.status(raw_http.infer(tidegate.port("http"), "echo", fp32())) == 200


def test_a_compressed_request_is_read_like_a_plain_one(tidegate: Tidegate) -> None:
    plain = json.dumps(fp32()).encode()
    straight = raw_http.exchange(tidegate.port("http"), "POST", "/v2/models/echo/infer", plain)
    packed = raw_http.exchange(tidegate.port("http"), "POST", "/v2/models/echo/infer", gzip.compress(plain), [("Content-Encoding", "gzip")])
    assert packed == straight


def test_a_client_that_leaves_leaves_no_work_behind(tidegate: Tidegate) -> None:
    before = abandoned(tidegate)
    body = json.dumps({"inputs": [{"name": "SECONDS", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}).encode()
    with socket.create_connection(("127.0.0.1", tidegate.port("http"))) as connection:
        connection.sendall(b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        wait_for(lambda: metric(tidegate, "tidegate_requests_in_flight") == 1.0, what="the request being in flight")
    wait_for(lambda: abandoned(tidegate) == before + 1, what="the request being given up")
    assert metric(tidegate, "tidegate_requests_in_flight") == 0.0


def metric(tidegate: Tidegate, name: str) -> float:
    return next(value for shown, value in samples(tidegate) if shown == name)


def abandoned(tidegate: Tidegate) -> float:
    return sum(value for shown, value in samples(tidegate) if shown.startswith("tidegate_requests_total{") and '"abandoned"' in shown)


def samples(tidegate: Tidegate) -> list[tuple[str, float]]:
    page = raw_http.exchange(tidegate.port_of_metrics(), "GET", "/metrics").decode().partition("\r\n\r\n")[2]
    lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return [(shown, float(value)) for shown, _, value in lines]


def test_the_metrics_page_has_ours_and_tritons(tidegate: Tidegate) -> None:
    raw_http.infer(tidegate.port("http"), "echo", fp32())
    page = raw_http.exchange(tidegate.port_of_metrics(), "GET", "/metrics").decode()
    assert 'tidegate_requests_total{door="http",model="echo",outcome="answered"}' in page
    assert 'nv_inference_request_success{model="echo",version="1"}' in page
