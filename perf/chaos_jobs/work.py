"""The jobs that are handed in: small, binary, wrong, slow and of several tenants, the same ones for the same seed."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from perf.chaos import models
from perf.chaos.models import ONCE_MODEL, REPEATABLE_MODEL

TENANTS = ("one", "two", "three")
SLOW_MODEL, EMBEDDING = "slow", "text_embedding"
MODELS = (ONCE_MODEL, REPEATABLE_MODEL, SLOW_MODEL)
_WORK_S, _SLOW_S = 0.002, 0.5
_NUMBERS, _TEXTS = 997, 64
"""Distinct requests: few enough to ask for each synchronously, many enough that one job's answer is no other's."""
_KINDS = {"JSON": 35, "binary": 20, "cached": 15, "text": 8, "binary text": 7, "wrong": 8, "cancelled": 5, "slow": 2}
"""Kinds of jobs, and how many in a hundred are of each."""
_UNKEYED = 0.1
"""Part of the jobs that come without an Idempotency-Key."""
_BATCH_LINES = 70
_WORDS = ("river", "stone", "harbour", "lamp", "window", "paper", "orchard", "signal", "winter", "copper", "garden", "letter")


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it is sent to `/v2/models/MODEL/infer`."""

    model: str
    body: bytes
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job that a caller wants: its request and how it is handed in."""

    kind: str
    tenant: str
    request: Request
    key: str
    """Idempotency key; empty for none."""
    cancel_after_s: float | None


def jobs(count: int, seed: int) -> Iterator[Wanted]:
    """Yield so many jobs."""
    random = Random(seed)
    for number in range(count):
        kind = random.choices(list(_KINDS), list(_KINDS.values()))[0]
        key = "" if random.random() < _UNKEYED else f"{seed}-{number}"
        cancel_after_s = random.uniform(0.0, 2.0) if kind == "cancelled" else None
        yield Wanted(kind, random.choice(TENANTS), _request(kind, random), key, cancel_after_s)


def batch_lines(number: int, seed: int) -> list[str]:
    """Return the lines of a batch, one of which asks for what the model does not have."""
    random = Random(f"{seed} {number}")
    calls: list[dict[str, object]] = [
        {"model": EMBEDDING, "input": _text(random), "encoding_format": "base64"} for _ in range(_BATCH_LINES)
    ]
    calls[random.randrange(_BATCH_LINES)]["dimensions"] = 3
    plain = ({"custom_id": f"line-{at}", "method": "POST", "url": "/v1/embeddings", "body": call} for at, call in enumerate(calls))
    return [json.dumps(each) for each in plain]


def _request(kind: str, random: Random) -> Request:
    number = float(random.randrange(_NUMBERS))
    match kind:
        case "JSON":
            return Request(ONCE_MODEL, models.http_body(number, _WORK_S))
        case "binary":
            return _binary(ONCE_MODEL, "X", "FP32", [3], struct.pack("<3f", number, _WORK_S, 0.0))
        case "cached":
            return Request(REPEATABLE_MODEL, models.http_body(number, _WORK_S))
        case "text":
            tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [_text(random)]}
            return Request(EMBEDDING, json.dumps({"inputs": [tensor]}).encode())
        case "binary text":
            text = _text(random).encode()
            return _binary(EMBEDDING, "TEXT", "BYTES", [1, 1], struct.pack("<I", len(text)) + text)
        case "wrong":
            tensor = {"name": "X", "datatype": "FP32", "shape": [2], "data": [number, _WORK_S]}
            return Request(ONCE_MODEL, json.dumps({"inputs": [tensor]}).encode())
        case _:
            return Request(SLOW_MODEL, models.http_body(number, _SLOW_S))


def _binary(model: str, name: str, datatype: str, shape: list[int], data: bytes) -> Request:
    tensor = {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return Request(model, head + data, (("Inference-Header-Content-Length", str(len(head))),))


def _text(random: Random) -> str:
    own = Random(random.randrange(_TEXTS))
    return " ".join(own.choices(_WORDS, k=own.randrange(2, 9)))
