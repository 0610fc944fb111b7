"""Webhook of a batch: the delivery that tells of its end, which one of its jobs' records has (`jobs/deliveries` makes it).

So it has the secrets, repeats and receivers that jobs' own have, and no store beside theirs. Called by `batches/batches`.
"""

from __future__ import annotations

from dataclasses import replace

from control_plane.batches.domain.batch import Batch, Ended
from control_plane.jobs.domain.delivery import Delivery, announced
from control_plane.jobs.domain.transitions import told
from control_plane.jobs.ports import JobStore

_TOLD_AFTER_S = 2.0
"""Time from the record of a webhook to its sending: whoever is told finds the batch ended."""


async def tell(batch: Batch, end: Ended, store: JobStore, *, now_s: float) -> bool:
    """Have the webhook sent as a delivery of the batch's last job, once; False: it has no job yet, or one that is open again.

    Called before the end is written, after which nobody looks after the batch any more; so it is sent a moment later.
    """
    begun = announced(Delivery(batch.webhook), now_s=now_s)
    assert begun is not None
    webhook = replace(begun, due_s=begun.due_s + _TOLD_AFTER_S, event=f"batch.{end.state}", about=batch.id)
    for number in reversed(range(len(batch.chunks))):
        while (job := await store.get(batch.job_id(number))) is not None:
            if job.is_open:
                return False
            if job.webhook is not None or await store.replace(told(job, webhook)):
                return True
    return False
