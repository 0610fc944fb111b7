"""Calls of the jobs API, over HTTP."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from typing import Any

from tests.e2e.tidegate import LONG_S, Tidegate

ENDED = {"succeeded", "failed", "cancelled", "expired", "dead"}


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(tidegate: Tidegate, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
    connection = http.client.HTTPConnection(tidegate.address("http"), timeout=LONG_S)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def seconds(length_s: float) -> bytes:
    tensor = {"name": "SECONDS", "datatype": "FP32", "shape": [1, 1], "data": [length_s]}
    return json.dumps({"inputs": [tensor]}).encode()


def texts(*given: str) -> bytes:
    tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [len(given), 1], "data": list(given)}
    return json.dumps({"inputs": [tensor]}).encode()


def submit(tidegate: Tidegate, model: str, body: bytes, **headers: str) -> str:
    accepted = ask(tidegate, "POST", f"/v2/models/{model}/jobs", body, **headers)
    assert accepted.status == 202, accepted.body
    assert accepted.headers["location"] == f"/v2/jobs/{accepted.json['id']}"
    return str(accepted.json["id"])


def ended(tidegate: Tidegate, job: str, *, within_s: float = LONG_S) -> Any:
    until_s = time.monotonic() + within_s
    while (found := ask(tidegate, "GET", f"/v2/jobs/{job}", Prefer="wait=10").json)["state"] not in ENDED:
        assert time.monotonic() < until_s, found
    return found


def state(tidegate: Tidegate, job: str) -> str:
    return str(ask(tidegate, "GET", f"/v2/jobs/{job}").json["state"])


def result(tidegate: Tidegate, job: str) -> Reply:
    return ask(tidegate, "GET", f"/v2/jobs/{job}/result")
