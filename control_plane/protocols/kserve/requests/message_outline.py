"""Outlines a large ModelInferRequest: removes its tensors' data, so that the rest is small enough to be
parsed at once.

Fields and elements are counted on the way, because two bytes on the wire can become an object of fifty in a
parser, in Triton's too. Called by `infer_proto`.
"""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import PayloadTooLarge
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.protocols.protobuf_fields import extents, varint

_LARGE_BYTES = 64 * 1024
"""Inputs of so many bytes together stay as they are; of what goes beyond the data is removed."""

_INPUTS = 5 << 3 | 2
RAW_INPUT_CONTENTS = 7 << 3 | 2
"""Tags (field number and wire type) of these fields in a ModelInferRequest."""
_CONTENTS = 5 << 3 | 2
"""Tag of `contents` in an InferInputTensor: elements written out one by one."""
_PACKED_VARINTS = frozenset(number << 3 | 2 for number in range(1, 6))
_PACKED_FIXED = {6 << 3 | 2: 4, 7 << 3 | 2: 8}
"""Tags of packed arrays in an InferTensorContents; for numbers of fixed size, with the bytes of one
number."""

_MAX_OWN_FIELDS = 8192
"""Most fields of a message and its large inputs themselves, such as inputs, outputs, parameters and raw contents: what is left of it is
parsed at once, and of two bytes each the parser makes an object."""

_FIELDS_PER_STEP = 1024
"""Walking so many fields takes about 2 ms."""
_STEP_BYTES = 2**20
_NOT_LAST = bytes(range(0x80, 0x100))
"""Bytes of a varint that are not its last; a packed array has as many elements as other bytes."""


def outline_steps(message: memoryview, limits: BodyLimits) -> Steps[tuple[bytes, list[memoryview]]]:
    """Split a serialised ModelInferRequest into the message without its tensors' data, and its raw contents
    (views).

    Raises:
        InvalidRequest: it is not a protobuf message. PayloadTooLarge: it has more fields or elements than
            `limits`.

    Source: protobuf's encoding; a message's fields may be left out without touching the others.
    """
    return (yield from _Outline(limits).message_steps(message))


@dataclass(slots=True)
class _Outline:
    """Builder of the outline, with the counts so far."""

    limits: BodyLimits
    fields: int = 0
    elements: int = 0
    own_fields: int = 0
    """Fields that stay in the outline, which is parsed at once."""

    def message_steps(self, message: memoryview) -> Steps[tuple[bytes, list[memoryview]]]:
        kept: list[bytes | memoryview] = []
        contents: list[memoryview] = []
        whole_bytes = kept_until = 0
        for tag, began, start, end in extents(message):
            if self._count_field():
                yield
            self._count_own_field()
            if tag == RAW_INPUT_CONTENTS:
                contents.append(message[start:end])
                kept.append(message[kept_until:began])
                kept_until = end
            elif tag == _INPUTS and (whole_bytes := whole_bytes + end - start) > _LARGE_BYTES:  # inputs with data in `contents`
                tensor = yield from self._tensor_steps(message[start:end])
                kept += (message[kept_until:began], varint(_INPUTS), varint(len(tensor)), tensor)
                kept_until = end
        return b"".join((*kept, message[kept_until:])), contents

    def _tensor_steps(self, tensor: memoryview) -> Steps[bytes]:
        kept: list[memoryview] = []
        kept_until = 0
        for tag, began, start, end in extents(tensor):
            if self._count_field():
                yield
            self._count_own_field()
            if tag == _CONTENTS:
                yield from self._contents_steps(tensor[start:end])
                kept.append(tensor[kept_until:began])
                kept_until = end
        return b"".join((*kept, tensor[kept_until:]))

    def _contents_steps(self, contents: memoryview) -> Steps[None]:
        for tag, _, start, end in extents(contents):
            if self._count_field():
                yield
            if tag in _PACKED_VARINTS:
                for at in range(start, end, _STEP_BYTES):
                    self._count_elements(len(bytes(contents[at : min(at + _STEP_BYTES, end)]).translate(None, _NOT_LAST)))
                    yield
            elif tag in _PACKED_FIXED:
                self._count_elements((end - start) // _PACKED_FIXED[tag])
            else:
                self._count_elements(1)

    def _count_own_field(self) -> None:
        """Raises PayloadTooLarge."""
        self.own_fields += 1
        if self.own_fields > _MAX_OWN_FIELDS:
            raise PayloadTooLarge(f"the message has more than {_MAX_OWN_FIELDS} inputs, outputs, parameters and other fields")

    def _count_field(self) -> bool:
        """Count a field; returns whether it is time for a pause. Raises PayloadTooLarge."""
        self.fields += 1
        if self.fields > self.limits.max_fields:
            self.limits.refuse_fields()
        return self.fields % _FIELDS_PER_STEP == 0

    def _count_elements(self, count: int) -> None:
        self.elements += count
        if self.elements > self.limits.max_elements:
            self.limits.refuse_elements()
