"""Limits of a request's body: bytes, inflated bytes, JSON, elements, fields.

A small body can be costly in each of these ways. Both frontends enforce the limits before Triton sees a
request: Triton takes some sixty bytes of memory for each number in JSON, and never gives them back.
`settings.frontends.GatewaySettings` has the reason for each default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from control_plane.core.errors import PayloadTooLarge

_ANY_RATIO_BYTES = 4 * 2**20
"""Inflated size that is allowed at any ratio: honest sparse tensors compress a thousandfold."""


@dataclass(frozen=True, slots=True)
class InflateBound:
    """Limit of the inflated size of compressed content, and the error text for content that exceeds it."""

    max_bytes: int
    refusal: str

    def refuse(self) -> NoReturn:
        raise PayloadTooLarge(self.refusal)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The limits of one request's body."""

    max_body_bytes: int = 128 * 2**20
    max_inflate_ratio: int = 100
    max_json_bytes: int = 32 * 2**20
    max_elements: int = 4 * 2**20
    """Total of elements that are written out one by one: in JSON, or in a gRPC message's `contents`."""
    max_fields: int = 2**17
    """Protobuf fields in a gRPC message; a packed array of numbers counts as one."""

    def inflated(self, compressed_bytes: int) -> InflateBound:
        """The bound on inflating content of so many compressed bytes."""
        return self._inflated(compressed_bytes, self.max_body_bytes, "TIDEGATE_MAX_BODY_BYTES")

    def inflated_json(self, compressed_bytes: int) -> InflateBound:
        """The bound on inflating an inference request without binary data, all of which is JSON."""
        if self.max_json_bytes >= self.max_body_bytes:
            return self.inflated(compressed_bytes)
        return self._inflated(compressed_bytes, self.max_json_bytes, "TIDEGATE_MAX_JSON_BYTES")

    def _inflated(self, compressed_bytes: int, most: int, setting: str) -> InflateBound:
        ratio = self.max_inflate_ratio
        by_ratio = max(_ANY_RATIO_BYTES, ratio * compressed_bytes)
        if by_ratio >= most:
            return InflateBound(most, f"decompressed it exceeds {most} bytes ({setting})")
        why = f"decompressed it exceeds {by_ratio} bytes, at most {ratio} times its {compressed_bytes} (TIDEGATE_MAX_INFLATE_RATIO)"
        return InflateBound(by_ratio, f"{why}; send it less compressed, or as it is")

    def check_json_bytes(self, size_bytes: int) -> None:
        """Check the size of a request's JSON. Raises PayloadTooLarge."""
        if size_bytes > self.max_json_bytes:
            raise PayloadTooLarge(
                f"the request's JSON has {size_bytes} bytes, at most {self.max_json_bytes} may be (TIDEGATE_MAX_JSON_BYTES); "
                "send large tensors as binary data"
            )

    def refuse_elements(self) -> NoReturn:
        raise PayloadTooLarge(
            f"the request has more than {self.max_elements} elements written out singly (TIDEGATE_MAX_ELEMENTS); "
            "send large tensors as binary data, over gRPC in raw_input_contents"
        )

    def refuse_fields(self) -> NoReturn:
        raise PayloadTooLarge(
            f"the message has more than {self.max_fields} fields (TIDEGATE_MAX_MESSAGE_FIELDS); send tensors in raw_input_contents"
        )
