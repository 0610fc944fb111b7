"""A job as its caller sees it, in JSON: an answer of the data port, and the data of its webhook."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from control_plane.jobs.domain.delivery import Delivery
from control_plane.jobs.domain.job import Job


def view_of(job: Job, place: int | None) -> dict[str, Any]:
    """Return the fields of a job; `place` is how many of its tenant's jobs come before it, where that is known."""
    seen: dict[str, Any] = {
        "id": job.id,
        "state": job.state,
        "model": job.model,
        "class": job.price_class,
        "attempts": job.attempts,
        "size_bytes": job.body.size_bytes,
        "submitted_at": _moment(job.submitted_s),
        "expires_at": _moment(job.deadline_s),
        "started_at": _moment(job.started_s),
        "ended_at": _moment(job.ended_s),
    }
    if place is not None:
        seen["place"] = place
    if job.error:
        seen["error"] = job.error
    if job.result is not None:
        seen["result"] = f"/v2/jobs/{job.id}/result"
        seen["status"] = job.result.status
    if job.output is not None:
        seen["output"] = {"url": job.output.url} | _delivery_view(job.output)
    if job.webhook is not None:  # without its URL: that may have a secret of the receiver in it
        seen["webhook"] = _delivery_view(job.webhook)
    return seen


def _delivery_view(delivery: Delivery) -> dict[str, Any]:
    """How far a delivery is."""
    seen: dict[str, Any] = {"state": delivery.state, "attempts": delivery.attempts}
    if delivery.is_pending:
        seen["next_at"] = _moment(delivery.due_s)
    if delivery.error:
        seen["error"] = delivery.error
    return seen


def _moment(time_s: float | None) -> str | None:
    return None if time_s is None else datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
