"""Outcomes of requests that end with an error: the error that the caller is told, and how it is counted."""

from __future__ import annotations

import asyncio

from control_plane.core.errors import ControlPlaneError, ErrorCode, GatewayStopping
from control_plane.core.infer_call import Outcome

_OUTCOMES = {
    ErrorCode.UPSTREAM_UNAVAILABLE: Outcome.UNAVAILABLE,
    ErrorCode.GATEWAY_STOPPING: Outcome.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED: Outcome.DEADLINE_EXCEEDED,
    ErrorCode.MODEL_NOT_FOUND: Outcome.MODEL_NOT_FOUND,
    ErrorCode.UPSTREAM_FAILED: Outcome.UPSTREAM_ERROR,
}


def outcome_of(error: BaseException) -> Outcome:
    """The outcome of a request that ended with `error`."""
    error = error_for_caller(error)
    if isinstance(error, asyncio.CancelledError):
        return Outcome.ABANDONED
    if isinstance(error, ControlPlaneError):
        return _OUTCOMES.get(error.code, Outcome.REFUSED)
    return Outcome.FAILED


def error_for_caller(error: BaseException) -> BaseException:
    """The error that the caller is told: of a cancellation by a stop, which the caller has not brought about, the stop's."""
    is_by_stop = isinstance(error, asyncio.CancelledError) and error.args and isinstance(error.args[0], GatewayStopping)
    return error.args[0] if is_by_stop else error
