"""Wires what computes jobs in one process: its own inference path once more, at lower priority than callers' requests and
with meters of its own.

Called by `app/data_plane/data_plane`, whose parts it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from control_plane.embeddings.embeddings import Embeddings
from control_plane.frontends.batches.compute_lines import LinesCompute
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.jobs.compute import JobCompute
from control_plane.frontends.jobs.yielding import Yielding
from control_plane.frontends.kserve.http_infer import HttpInferContext
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.inference.governance import Governance, Meter
from control_plane.inference.inference import InferenceService
from control_plane.inference.model_configuration.background_lanes import BackgroundLanes
from control_plane.models.fingerprints import Fingerprints


def make_job_compute(
    context: HttpInferContext,
    budget: BodyBudget,
    *,
    governance: Governance,
    dispatch: Dispatch,
    fingerprints: Fingerprints,
    is_loaded: Callable[[str], bool],
    inference_with: Callable[[Governance], InferenceService],
    embeddings_of: Callable[[InferenceService], Embeddings],
    max_attempts: int,
) -> JobCompute:
    """Make what computes jobs.

    `inference_with` makes the process's inference service with another governance, `embeddings_of` the embeddings over one.
    """
    lanes = BackgroundLanes(dispatch, fingerprints, is_loaded=is_loaded)
    below = replace(governance, admission=governance.admission.in_background(lanes.has))
    interrupted = inference_with(below)
    uninterrupted = inference_with(replace(governance, admission=governance.admission.in_background()))

    def is_alone() -> bool:
        return not below.admission.slots.background.are_callers_present

    def may_join(tenant: str, model: str) -> bool:
        """Whether nothing counts or assigns a tenant's requests for a model one by one."""
        return not (below.admission.is_limited(tenant) or below.meter.has_log or below.access.route(model) is not None)

    def metered(meter: Meter, yields: bool) -> InferenceService:
        return (interrupted if yields else uninterrupted).metered_by(meter)

    def metered_embeddings(meter: Meter, yields: bool) -> Embeddings:
        return embeddings_of(metered(meter, yields))

    def is_hot(name: str) -> bool:
        """Whether jobs for this model or route need no load."""
        route = below.access.route(name)
        return is_loaded(name if route is None else route.model)

    yielding = Yielding(is_alone)
    lines = LinesCompute(
        metered_embeddings, below.meter, max_attempts=max_attempts, is_alone=is_alone, yielding=yielding, may_join=may_join
    )
    return JobCompute(
        metered,
        context,
        budget,
        meter=below.meter,
        is_hot=is_hot,
        is_alone=is_alone,
        yielding=yielding,
        lines=lines,
    )
