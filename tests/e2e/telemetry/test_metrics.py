"""The metrics page before the real Triton: ours and Triton's, with a request whose client has left."""

from __future__ import annotations

import json
import socket

from tests.e2e import raw_http
from tests.e2e.tidegate import Tidegate, wait_for

ECHO = {"inputs": [{"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", "data": [1, 2.5, -3, 4e10]}]}


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
    raw_http.infer(tidegate.port("http"), "echo", ECHO)
    page = raw_http.exchange(tidegate.port_of_metrics(), "GET", "/metrics").decode()
    assert 'tidegate_requests_total{frontend="http",model="echo",outcome="answered"}' in page
    assert 'nv_inference_request_success{model="echo",version="1"}' in page
