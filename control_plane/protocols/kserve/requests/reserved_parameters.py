"""Parameters that only the gateway sets, by header fields of its own (`protocols/header_forwarding`): a caller's request may
have none of them, and a tenant's no priority in Triton's queues.

They are refused and not removed, so that a request goes on byte for byte as it came. Called by the codecs of inference
requests where a request has parameters, which most have not.
"""

from __future__ import annotations

from collections.abc import Iterable

from control_plane.core.errors import InvalidRequest
from control_plane.core.infer_call import InferCall

_PREFIX = "tidegate-"


def refuse_priority(call: InferCall) -> None:
    """Raise InvalidRequest if the request of a tenant names its priority in Triton's queue, before those of others."""
    if call.has_priority:
        raise InvalidRequest("parameter 'priority' is the gateway's own where callers have keys: the priority of their tenant decides")


def refuse_reserved(parameters: Iterable[str]) -> None:
    """Raise InvalidRequest if one of these names of parameters is the gateway's own."""
    for name in parameters:
        if name.startswith(_PREFIX):
            raise InvalidRequest(
                f"parameter {name[:64]!r} is the gateway's own: a request may have no parameters that begin with {_PREFIX!r}"
            )
