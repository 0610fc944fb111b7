"""The record of a job as JSON, in the form that all stores keep."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from dataclasses import fields
from typing import Any

import orjson

from control_plane.jobs.domain.delivery import Delivery, DeliveryState
from control_plane.jobs.domain.job import Blob, Charge, Job, JobState, PriceClass, Result
from control_plane.metering.domain.usage import Usage

_NAMES = {kind: tuple(each.name for each in fields(kind)) for kind in (Job, Blob, Result, Charge, Delivery, Usage)}
"""Fields of the parts of a record, looked up once: a job is encoded four times."""


def encode_job(job: Job) -> bytes:
    """Encode a record."""
    return orjson.dumps(job, default=_plain, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def decode_job(text: bytes | str) -> Job:
    """Decode what `encode_job` returned, of this version or an earlier one."""
    plain: dict[str, Any] = orjson.loads(text)
    return Job(
        **{
            **plain,
            "scopes": tuple(plain["scopes"]),
            "headers": tuple((name, value) for name, value in plain["headers"]),
            "body": _blob(plain["body"]),
            "price_class": PriceClass(plain["price_class"]),
            "state": JobState(plain["state"]),
            "result": _result(plain["result"]),
            "charge": _charge(plain["charge"]),
            "output": _delivery(plain.get("output")),
            "webhook": _delivery(plain.get("webhook")),
        }
    )


def _plain(value: Any) -> Any:
    """Return what JSON has a form for: of the bytes that a record carries, and of its parts."""
    if isinstance(value, bytes):
        return b2a_base64(value, newline=False).decode()
    plain = {name: getattr(value, name) for name in _NAMES[type(value)]}
    if isinstance(value, Blob) and value.data is None:
        del plain["data"]  # gateways of the version before, beside which this one may run, know no such field
    if isinstance(value, Delivery) and not value.event:
        del plain["event"], plain["about"]  # nor these
    if isinstance(value, Job):
        for name in ("output", "webhook"):
            if plain[name] is None:
                del plain[name]
        if not value.fingerprint:
            del plain["fingerprint"]
    return plain


def _blob(plain: dict[str, Any]) -> Blob:
    data = plain.get("data")
    return Blob(**{**plain, "data": None if data is None else a2b_base64(data)})


def _result(plain: dict[str, Any] | None) -> Result | None:
    return None if plain is None else Result(**{**plain, "blob": _blob(plain["blob"])})


def _charge(plain: dict[str, Any] | None) -> Charge | None:
    return None if plain is None else Charge(**{**plain, "usage": Usage(**plain["usage"])})


def _delivery(plain: dict[str, Any] | None) -> Delivery | None:
    return None if plain is None else Delivery(**{**plain, "state": DeliveryState(plain["state"])})
