"""Errors of the control plane as messages, and back."""

from __future__ import annotations

from typing import Any

from control_plane.core.errors import ControlPlaneError, ErrorCode, UpstreamFailed
from control_plane.node.domain.messages import Failed

_KINDS = {kind.code.value: kind for kind in ControlPlaneError.__subclasses__() if kind.__module__ == ControlPlaneError.__module__}
_DETAILS: dict[str, dict[str, type]] = {
    ErrorCode.LOAD_FAILED.value: {"upstream_code": int, "is_transient": bool},
    ErrorCode.STORE_UNAVAILABLE.value: {"is_full": bool},
    ErrorCode.OVERLOADED.value: {"retry_after_s": float},
    ErrorCode.UPSTREAM_UNAVAILABLE.value: {"is_not_sent": bool},
}
"""Fields of errors that callers decide by, as numbers."""


def failure_of(number: int, error: ControlPlaneError) -> Failed:
    """Return the message that tells of an error."""
    values = {name: getattr(error, name) for name in _DETAILS.get(error.code.value, {})}
    return Failed(number, error.code.value, str(error), {name: float(value) for name, value in values.items() if value is not None})


def error_of(failed: Failed) -> ControlPlaneError:
    """Return the error that a message tells of."""
    kind = _KINDS.get(failed.code, UpstreamFailed)
    types = _DETAILS.get(failed.code, {})
    details: dict[str, Any] = {name: types[name](value) for name, value in failed.details.items() if name in types}
    return kind(failed.message, **details)
