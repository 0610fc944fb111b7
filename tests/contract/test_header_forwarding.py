"""What a pattern names goes on to the real Triton, over both protocols, and its models see it as parameters of the request."""

from __future__ import annotations

import json
from typing import Any

import tritonclient.grpc

from tests.contract.conftest import BothWays
from tests.e2e import raw_http

BODY = {"inputs": [{"name": "ANY", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}]}
HEADERS = {"X-Tenant": "a", "x-locale": "de", "x-other": "b", "cookie": "c", "authorization": "Bearer d", "x-api-key": "e"}


def facts(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)["parameters"]
    return found


def test_over_http(frontends: BothWays) -> None:
    answer = raw_http.infer(frontends.gateway_http, "facts", BODY, fields=HEADERS.items())
    told = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert facts(told["outputs"][0]["data"][0]) == {"X-Tenant": "a", "x-locale": "de"}


def test_over_grpc(frontends: BothWays) -> None:
    with tritonclient.grpc.InferenceServerClient(frontends.gateway_grpc) as client:
        asked = tritonclient.grpc.InferInput("ANY", [1, 1], "BYTES")
        asked._raw_content = b"\1\0\0\0a"
        answer = client.infer("facts", [asked], headers={name.lower(): value for name, value in HEADERS.items()})
    assert facts(answer.as_numpy("FACTS")[0, 0].decode()) == {"x-tenant": "a", "x-locale": "de"}
