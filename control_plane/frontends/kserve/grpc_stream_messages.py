"""Messages of answers and errors within a ModelStreamInfer stream, and the rule which errors end the stream."""

from __future__ import annotations

import asyncio

from control_plane.inference.retries.server_fault import dead_stub_model_in
from control_plane.protocols.grpc import (
    PREFIX_BYTES,
    GrpcAnswer,
    GrpcStatus,
    MessageFrame,
    frame_message,
    is_compressed,
    message_in,
    message_pieces,
    status_answer,
)
from control_plane.protocols.kserve.messages import service_pb2
from control_plane.protocols.kserve.requests.body_limits import InflateBound

ERRORS_END_STREAM = (b"triton_grpc_error", b"true")
"""Metadata by which a client asks that an error ends the stream with a status, instead of being sent as a
message."""

_ERROR_FIELD = 0x0A
"""First byte of a message whose first field is `error_message`: number 1, with a length (protobuf's encoding)."""
_ANSWER = InflateBound(2**31 - 1, "the answer is too large")


class StreamEnded(Exception):
    """Ends the call with a status before the client has finished."""

    def __init__(self, answer: GrpcAnswer) -> None:
        super().__init__(answer.details)
        self.answer = answer


def raise_model_error(frame: MessageFrame) -> None:
    """End the call for an error of a model, as Triton does where the client sent `triton_grpc_error`.

    Errors of requests that never reached a model do not end it; they are told apart by the missing model
    name. The answer does not contain the status; INTERNAL is the one that errors of Python models have.
    """
    answer = service_pb2.ModelStreamInferResponse.FromString(bytes(frame[PREFIX_BYTES:]))
    if answer.error_message and answer.infer_response.model_name:
        raise StreamEnded(status_answer(GrpcStatus.INTERNAL, answer.error_message))


def dead_model_in(frame: MessageFrame) -> str | None:
    """The model whose request Triton's message says to have met a dead stub, empty where it is not named; None for all other messages,
    of which most are told by one byte: of an error it is the first field."""
    if len(frame) <= PREFIX_BYTES or frame[PREFIX_BYTES] != _ERROR_FIELD:
        return None
    answer = service_pb2.ModelStreamInferResponse.FromString(bytes(frame[PREFIX_BYTES:]))
    if dead_stub_model_in(answer.error_message.encode()) is None:
        return None
    name: str = answer.infer_response.model_name
    return name


def says_decoupled(answer: GrpcAnswer) -> bool:
    """Whether Triton has refused a ModelInfer call, uncomputed, since its model is decoupled, in the words of 24.10."""
    return answer.code == GrpcStatus.UNIMPLEMENTED and "decoupled transaction policy" in answer.details


def error_message(request_id: str, text: str) -> bytes:
    """The stream message that reports one request's failure."""
    answer = service_pb2.ModelStreamInferResponse(error_message=text)
    answer.infer_response.id = request_id
    return frame_message(answer.SerializeToString())


async def inflated_answer(answer: GrpcAnswer) -> bytes | memoryview:
    """The message in a server's answer, inflated in steps if it is compressed, since it may be large."""
    frame = b"".join(answer.body)
    if not is_compressed(frame):
        return message_in(frame, answer.encoding, _ANSWER)
    pieces = []
    for piece in message_pieces(frame, answer.encoding, _ANSWER):
        pieces.append(piece)
        await asyncio.sleep(0)
    return b"".join(pieces)
