"""The job that computes a chunk of a batch."""

from __future__ import annotations

from control_plane.batches.domain.batch import EMBEDDINGS, Batch
from control_plane.jobs.domain.job import Blob, Job, PriceClass, due_s_of

_RESULTS_KEPT_S = 3600.0
"""Time after the batch's window for which the results of its chunks are kept, for whoever writes the output."""


def chunk_job(batch: Batch, number: int, body: Blob, *, now_s: float) -> Job:
    """Return the job of one chunk, whose lines are `body`: an economy job that ends with the batch's window."""
    return Job(
        id=batch.job_id(number),
        tenant=batch.tenant,
        key_id=batch.key_id,
        scopes=batch.scopes,
        model=batch.model,
        target=EMBEDDINGS,
        headers=(),
        body=body,
        submitted_s=now_s,
        due_s=due_s_of(PriceClass.ECONOMY, submitted_s=batch.created_s, deadline_s=batch.expires_s),
        deadline_s=batch.expires_s,
        price_class=PriceClass.ECONOMY,
        idempotency_key=f"{batch.id} {number}",  # with a blank, which no caller's has
        keep_at_least_until_s=batch.expires_s + _RESULTS_KEPT_S,
    )
