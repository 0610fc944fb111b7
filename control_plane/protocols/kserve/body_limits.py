"""How large a request's body may be, in each of the ways in which a small one costs much: bytes, what it inflates to, numbers, fields.

Both doors hold requests to these limits before Triton sees them: it keeps some sixty bytes for each number in JSON, and never
gives them back. `settings.doors.GatewaySettings` says why each default is what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from control_plane.core.errors import PayloadTooLarge

_ANY_RATIO_BYTES = 4 * 2**20
"""What a compressed body may become however small it is: sparse tensors compress a thousandfold."""


@dataclass(frozen=True, slots=True)
class InflateBound:
    """What compressed content may become at most, and the sentence for what becomes more."""

    max_bytes: int
    refusal: str

    def refuse(self) -> NoReturn:
        raise PayloadTooLarge(self.refusal)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The limits of one request."""

    max_body_bytes: int = 128 * 2**20
    max_inflate_ratio: int = 100
    max_json_bytes: int = 32 * 2**20
    max_elements: int = 4 * 2**20
    """Of tensors whose elements are written out singly: in JSON, or in a gRPC message's `contents`."""
    max_fields: int = 2**17
    """Of a gRPC message; a packed array of numbers is one."""

    def inflated(self, compressed_bytes: int) -> InflateBound:
        """The bound for content of so many compressed bytes."""
        return self._inflated(compressed_bytes, self.max_body_bytes, "TIDEGATE_MAX_BODY_BYTES")

    def inflated_json(self, compressed_bytes: int) -> InflateBound:
        """As `inflated`, of an inference without binary data."""
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
        """Raises PayloadTooLarge."""
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
