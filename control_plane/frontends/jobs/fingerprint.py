"""Fingerprint of a submission without its body: tells whether a repeated `Idempotency-Key` is for the same request
(draft-ietf-httpapi-idempotency-key-header, 2.7).

It contains the header fields on which the answer depends, and the caller's choices of price and deadline. Other fields may differ,
since clients and proxies set them anew for each attempt: trace context, request ids, the number of the retry.
"""

from __future__ import annotations

from hashlib import sha256

from control_plane.protocols.header_forwarding import HeaderForwarding
from control_plane.protocols.http1 import Headers
from control_plane.protocols.per_request import PER_REQUEST_FIELDS

_ASKS = frozenset(
    (
        b"accept",
        b"accept-encoding",
        b"content-encoding",
        b"content-type",
        b"inference-header-content-length",
        b"tidegate-cost-budget-units",
        b"tidegate-job-class",
        b"tidegate-job-expires-s",
        b"tidegate-latency-budget-ms",
        b"tidegate-target",
        b"tidegate-timeout-ms",
    )
)
"""How the body is read, by which model it is computed, in what form the answer is, and by when and for what price."""


def fingerprint(headers: Headers, forwarding: HeaderForwarding) -> str:
    """Return the digest of the fields that ask for something, those that models see as parameters among them."""
    lower = [(name.lower(), value) for name, value in headers]
    asking = [field for field in lower if field[0] in _ASKS]
    seen = [field for field in lower if field[0] not in _ASKS and field[0] not in PER_REQUEST_FIELDS]
    # The order of fields of different names means nothing (RFC 9110, 5.3).
    ordered = sorted(asking, key=lambda field: field[0]), sorted(seen, key=lambda field: field[0])
    told = b"".join(b"%b:%b\n" % field for field in ordered[0]) + b"\n" + forwarding.matched(ordered[1])
    return sha256(told).hexdigest()
