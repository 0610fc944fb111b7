"""Infer requests over HTTP, read as a frontend reads them."""

from __future__ import annotations

import json

from control_plane.core.algorithms.steps import finish
from control_plane.core.infer_call import InferCall
from control_plane.protocols.kserve.requests.infer_json import infer_request_steps


def read(body: bytes, header_length: bytes | None = None) -> InferCall:
    return finish(infer_request_steps(body, header_length, model_name="m", model_version="3"))


def binary(datatype: str, shape: list[int], size: object, content: bytes) -> tuple[bytes, bytes]:
    """A body with one binary input, and the length of its JSON header."""
    entry = {"name": "X", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [entry]}).encode()
    return text + content, b"%d" % len(text)
