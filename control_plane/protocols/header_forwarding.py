"""Which fields of a request's head go on to Triton.

Those that Triton itself reads always do; others only where their names match a pattern, as Triton's own
`--http-header-forward-pattern` and `--grpc-header-forward-pattern` then make parameters of the request of them. Answers may
depend on such fields, so they are part of a kept answer's key; what Triton is not sent no answer can depend on.

Source: Triton's "parameters" extension, header forwarding; RFC 9110, 7.6.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_READ_BY_TRITON = frozenset(
    (
        b"accept",
        b"accept-encoding",
        b"content-encoding",
        b"content-type",
        b"endpoint-load-metrics-format",
        b"grpc-accept-encoding",
        b"grpc-encoding",
        b"grpc-trace-bin",
        b"inference-header-content-length",
        b"traceparent",
        b"tracestate",
        b"triton_grpc_error",
        b"x-request-id",
    )
)
"""No answer's tensors depend on these: they frame, or tell requests apart."""

_RESTRICTED = b"triton-grpc-protocol-"
"""Begins the names of what callers show a Triton that others run and that restricts a protocol."""

_NEVER = frozenset(
    (
        b"authorization",  # a caller's credentials are for the gateway, not for models
        b"connection",
        b"content-length",
        b"cookie",
        b"expect",
        b"host",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"set-cookie",
        b"te",
        b"tidegate-control",  # the gateway's own
        b"trailer",
        b"transfer-encoding",
        b"triton-grpc-protocol-tidegate-control",
        b"upgrade",
        b"x-api-key",
    )
)
"""Whatever the pattern: of a connection, or secret."""

_MAX_NAME_BYTES = 256
_BREAKS_A_LINE = re.compile(rb"[\r\n\0]")


@dataclass(frozen=True, slots=True)
class HeaderForwarding:
    """An allow-list of header fields; `pattern` is found anywhere in a name, in any case, as Triton does with `(?i)`."""

    pattern: re.Pattern[bytes] | None = None

    @classmethod
    def of(cls, pattern: str) -> HeaderForwarding:
        """Forwarding of what matches; nothing does where `pattern` is empty."""
        return cls(re.compile(pattern.encode(), re.IGNORECASE) if pattern else None)

    def passes(self, name: bytes, value: bytes) -> bool:
        """Whether the field goes on; `name` is in lower case."""
        if name in _NEVER:
            return False
        return name in _READ_BY_TRITON or name.startswith(_RESTRICTED) or self._matches(name, value)

    def matched(self, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Those that are forwarded by the pattern, with their order, as one text for a key; empty where there are none."""
        if self.pattern is None:
            return b""
        found = [field for field in fields if field[0].lower() not in _NEVER and self._matches(field[0].lower(), field[1])]
        return b"".join(b"%d:%b%d:%b" % (len(name), name, len(value), value) for name, value in found)

    def _matches(self, name: bytes, value: bytes) -> bool:
        pattern = self.pattern
        is_one = pattern is not None and len(name) <= _MAX_NAME_BYTES and pattern.search(name) is not None
        return is_one and _BREAKS_A_LINE.search(value) is None


NO_FORWARDING = HeaderForwarding()
