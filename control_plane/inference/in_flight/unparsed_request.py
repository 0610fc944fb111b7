"""What an unparsed request shows of itself, so that a refusal is recorded under the right model and id.

The frontends' requests implement it; `inference/in_flight/running_request` holds one until its request is authorised.
"""

from __future__ import annotations

from typing import Protocol


class UnparsedRequest(Protocol):
    """An unparsed request: lets a refusal be recorded under the right model and id although nothing was parsed."""

    def name_seen(self) -> str:
        """The model or route name, as far as it shows without parsing; else empty.

        It may be any text: it is looked up, and recorded only if it exists.
        """

    def header_id(self) -> str:
        """The request id in its headers (`x-request-id`); else empty."""

    def body_bytes(self) -> int:
        """Bytes of its body, which it holds while it waits."""


class _Unseen:
    """Null `UnparsedRequest`, for requests whose bytes are not at hand."""

    def name_seen(self) -> str:
        return ""

    def header_id(self) -> str:
        return ""

    def body_bytes(self) -> int:
        return 0


UNSEEN = _Unseen()
