"""The message of a webhook and its signature, by Standard Webhooks 1.0 (github.com/standard-webhooks/standard-webhooks)."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256

import orjson

from control_plane.jobs.domain.job import Job
from control_plane.jobs.domain.job_view import view_of

SECRET_PREFIX = "whsec_"  # noqa: S105
SECRET_BYTES = 32
"""The standard has 24 to 64."""
_MAX_ERROR_CHARS = 1000


def message_id(job: Job) -> str:
    """Return the id by which a receiver recognises what it was told before: one for each end of a job, or of a batch."""
    if job.webhook is not None and job.webhook.event:
        return f"{job.webhook.about}-{job.webhook.event.rpartition('.')[2]}"
    return f"{job.id}-{job.fence}-{job.state}"


def body_of(job: Job) -> bytes:
    """Return the message of an ended job: its view, but for how its delivery is going, and where its result is. Of what the
    job is a part of it has the id alone, in the form of OpenAI's own webhooks.
    """
    if job.webhook is not None and job.webhook.event:
        own = {"id": message_id(job), "object": "event", "created_at": int(job.webhook.begun_s)}
        return orjson.dumps(own | {"type": job.webhook.event, "data": {"id": job.webhook.about}})
    view = view_of(replace(job, webhook=None, error=job.error[:_MAX_ERROR_CHARS]), None)
    at = datetime.fromtimestamp(job.ended_s or 0.0, UTC).isoformat(timespec="milliseconds")
    return orjson.dumps({"type": f"job.{job.state}", "timestamp": at, "data": view})


def headers_of(job: Job, body: bytes, secrets: Sequence[str], *, now_s: float) -> list[tuple[str, str]]:
    """Return the header fields of a delivery, signed with each of the secrets, so that one may be replaced by another."""
    signed = f"{message_id(job)}.{int(now_s)}.".encode() + body
    return [
        ("content-type", "application/json"),
        ("webhook-id", message_id(job)),
        ("webhook-timestamp", str(int(now_s))),
        ("webhook-signature", " ".join(_signature(secret, signed) for secret in secrets)),
    ]


def _signature(secret: str, signed: bytes) -> str:
    key = b64decode(secret.removeprefix(SECRET_PREFIX))
    return "v1," + b64encode(hmac.digest(key, signed, sha256)).decode()
