"""JSON of files and batches in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from control_plane.batches.batches import Progress
from control_plane.batches.domain.batch import EMBEDDINGS, Batch, BatchState, StoredFile


def file_view(file: StoredFile) -> dict[str, Any]:
    """Return the fields of a file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": int(file.created_s),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def batch_view(batch: Batch, progress: Progress) -> dict[str, Any]:
    """Return the fields of a batch."""
    end = progress.ended
    ended_s = None if end is None else int(end.ended_s)
    at = {f"{state}_at": ended_s if end is not None and end.state is state else None for state in _ENDS}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": EMBEDDINGS,
        "errors": None,
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": progress.state,
        "output_file_id": batch.output_file_id if end is not None and end.has_output else None,
        "error_file_id": batch.error_file_id if end is not None and end.has_errors else None,
        "created_at": int(batch.created_s),
        "in_progress_at": int(batch.created_s),
        "expires_at": int(batch.expires_s),
        "finalizing_at": None,
        **at,
        "failed_at": None,
        "cancelling_at": None if progress.cancelled_s is None else int(progress.cancelled_s),
        "request_counts": {"total": batch.lines, "completed": progress.completed, "failed": progress.failed},
        "metadata": batch.metadata,
        **({"waits": _NO_ROOM} if progress.waits else {}),
    }


def page(views: list[dict[str, Any]] | orjson.Fragment, ids: Sequence[str], *, has_more: bool) -> dict[str, Any]:
    """Return a page of a list, with the ids of what is on it."""
    first_last = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return {"object": "list", "data": views, **first_last, "has_more": has_more}


_NO_ROOM = (
    "no more lines are computed: this tenant's files and answers have as many bytes as they may; delete files that are no longer "
    "needed, and it goes on"
)
_ENDS = (BatchState.COMPLETED, BatchState.CANCELLED, BatchState.EXPIRED)
