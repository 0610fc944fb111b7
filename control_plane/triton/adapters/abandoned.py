"""Requests whose caller has left while Triton computes them: how long their end is waited for.

Triton goes on all the same, unless it is cancelled over gRPC and its backend asks whether it was. So its
answer is read to nobody, and the request's slot is kept, which is what others wait for. Used by
`triton/adapters/http/client` and `triton/adapters/grpc/client`.
"""

from __future__ import annotations

_AT_LEAST_S = 1.0
"""Most requests end within this time. A cancellation would save little of what is left of them, and Triton
24.10 keeps some memory for each.
"""


_TOLD_AFTER_S = 3.0
"""Over gRPC Triton is told by then, for models that ask whether they are cancelled: one that takes long would
else compute to its end for nobody.
"""

_TIMES_EXPECTED = 2.0


def patience_s(waited_s: float, expected_s: float) -> float:
    """Return for how long the end of a request is waited for that Triton has had for `waited_s`, and that is
    expected to take `expected_s` in all.

    It is as long again: whatever takes more than twice its time may hang, and must not keep others from a
    server that does not. A request behind a long queue takes its time without that: were its slot free
    before, the next would join a queue that nobody sees.
    """
    return max(_AT_LEAST_S, waited_s, _TIMES_EXPECTED * expected_s - waited_s)


def told_after_s(waited_s: float, expected_s: float) -> float:
    """Return how long after its caller a request is cancelled that has not ended."""
    return min(patience_s(waited_s, expected_s), max(_TOLD_AFTER_S, waited_s))
