"""Sequence ids of tenants, as they go to Triton, which knows a sequence by its model and its id alone.

In a tenant's request the id is replaced by a keyed digest of it, a number for a number and a string for a string, so that no
tenant meets the sequence of another, by mistake or by intent. The key is the tenant's (`auth/access`), in all gateways the
same, and nothing is remembered: a sequence may go on at another gateway, or over the other protocol. Hence nothing is
translated back either: Triton's errors, an ensemble's answers and a model's control tensor have the digest.

Called by `frontends/kserve/http_infer` and `grpc_infer`, of requests that have both a tenant and a sequence. Source: KServe v2
inference protocol with Triton's sequence extension, as server 2.51 reads it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import blake2b

import orjson

from control_plane.core.algorithms.steps import Steps, join_steps
from control_plane.core.errors import InvalidRequest
from control_plane.core.infer_call import InferCall
from control_plane.protocols.kserve.messages import service_pb2

Body = bytes | bytearray

_WRONG = "parameter 'sequence_id' must be an unsigned integer of 64 bits or a short string, and stand in the request once"
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_TEXT_BYTES = 16
_LARGEST = 2**63 - 1
"""Largest number that is made of an id: an ensemble's answer has ids as signed numbers."""

_SPELLED = b"".join(rb"(?:%c|\\u00(?i:%02x))" % (letter, letter) for letter in b"sequence_id")
_NAME = re.compile(rb'"(?<!\\")' + _SPELLED + rb'"')
"""The parameter's name as a JSON string, however it is spelled. A quote within a string follows a backslash, so in valid JSON
this matches whole strings only."""
_NAME_BYTES = len('""') + len(r"\u0073") * len("sequence_id")
_VALUE = re.compile(rb'[ \t\r\n]*+:[ \t\r\n]*+([0-9]{1,20}(?=[ \t\r\n,}])|"[^"\\]*+(?:\\.[^"\\]*+)*+")', re.DOTALL)
_NO_NAME = re.compile(rb"[ \t\r\n]*+[^ \t\r\n:]")
"""What follows a JSON string that is no name of a member, but an element of an array or a value: anything but a colon."""
_WINDOW_BYTES = 2048
"""Bytes in which a value must end: Triton takes strings of 128 bytes, which are up to 768 when escaped."""
MOVED_BYTES = 2**20
"""Bytes that are moved in one turn of the loop, in some 0.2 ms."""
_STEP_BYTES = 16 * 1024
"""Bytes that are searched in one turn of the loop: they have the name a thousand times at most."""


def own_call(call: InferCall, key: bytes) -> InferCall:
    """Return the call with the tenant's own id of its sequence, by the tenant's `key` of at most 64 bytes.

    Raises InvalidRequest: the id is neither a string nor an integer of 64 bits.
    """
    if call.sequence_is_text:
        own = blake2b(call.sequence_id.encode(), key=key, digest_size=_TEXT_BYTES, person=b"text").hexdigest()
        return replace(call, sequence_id=own)
    if not _INTEGER.fullmatch(call.sequence_id) or not -(2**63) <= int(call.sequence_id) < 2**64:
        raise InvalidRequest(_WRONG)
    # Over gRPC the upper half of the numbers is negative.
    number = b"%d" % (int(call.sequence_id) % 2**64)
    digest = int.from_bytes(blake2b(number, key=key, digest_size=8, person=b"number").digest())
    return replace(call, sequence_id=str(1 + digest % _LARGEST))  # 0 would be no sequence


def own_body_steps(body: Body, json_bytes: int, call: InferCall, own: InferCall) -> Steps[tuple[Body, int]]:
    """Replace the id of `call` in the checked body of an HTTP request by that of `own`; return the body and the size of its
    JSON. A bytearray is changed in place: a large body is in memory once, as it is counted.

    Raises InvalidRequest: it is not certain where the id stands.
    """
    start, end = yield from _value_steps(body, json_bytes)
    if str(orjson.loads(body[start:end])) != call.sequence_id:
        raise InvalidRequest(_WRONG)
    value = (f'"{own.sequence_id}"' if own.sequence_is_text else own.sequence_id).encode()
    if isinstance(body, bytearray):
        yield from _splice_steps(body, start, end, value)
    else:
        view = memoryview(body)
        body = yield from join_steps(view[:start], value, view[end:])
    return body, json_bytes + len(value) - (end - start)


def own_field(own: InferCall) -> bytes:
    """Encode the id of `own` as a field to append to a ModelInferRequest: of equal names in a protobuf map the last counts."""
    message = service_pb2.ModelInferRequest()
    if own.sequence_is_text:
        message.parameters["sequence_id"].string_param = own.sequence_id
    else:
        message.parameters["sequence_id"].int64_param = int(own.sequence_id)
    field: bytes = message.SerializeToString()
    return field


def _splice_steps(body: bytearray, start: int, end: int, value: bytes) -> Steps[None]:
    """Put a value in the place of another, by steps that move what follows it, from its end where the value is longer."""
    size, longer = len(body), len(value) - (end - start)
    body += bytes(max(longer, 0))
    pieces = range(end, size, MOVED_BYTES)
    for at in reversed(pieces) if longer > 0 else pieces:
        until = min(at + MOVED_BYTES, size)
        body[at + longer : until + longer] = body[at:until]
        yield
    body[start : start + len(value)] = value
    del body[size + longer :]


def _value_steps(json: Body, json_bytes: int) -> Steps[tuple[int, int]]:
    """Find the value of the only member of that name, wherever it is: the parsed request has one among its parameters, so with
    two it would not be certain which. Looking for the name needs no parser, whose notion of JSON could differ from Triton's."""
    found: list[tuple[int, int]] = []
    for at in range(0, json_bytes, _STEP_BYTES):
        if at:
            yield
        for name in _NAME.finditer(json, at, min(at + _STEP_BYTES + _NAME_BYTES, json_bytes)):
            end = min(name.end() + _WINDOW_BYTES, json_bytes)
            if name.start() >= at + _STEP_BYTES or _NO_NAME.match(json, name.end(), end):
                continue
            value = _VALUE.match(json, name.end(), end)
            if value is None or found:
                raise InvalidRequest(_WRONG)
            found.append(value.span(1))
    if not found:
        raise InvalidRequest(_WRONG)
    return found[0]
