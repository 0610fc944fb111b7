"""Requests whose caller has left while Triton computes them: how long their end is waited for.

Triton goes on all the same, unless it is cancelled over gRPC and its backend asks whether it was. So its
answer is read to nobody, and the request's slot is kept, which is what others wait for. Used by
`triton/adapters/http` and `triton/adapters/grpc`.
"""

from __future__ import annotations

_AT_LEAST_S = 1.0
"""Most requests end within this time. A cancellation would save little of what is left of them, and Triton
24.10 keeps some memory for each.
"""


def patience_s(waited_s: float) -> float:
    """Return for how long the end of a request is waited for that Triton has had for `waited_s`.

    It is as long again: whatever takes more than twice its time may hang, and must not keep others from a
    server that does not.
    """
    return max(_AT_LEAST_S, waited_s)
