"""The verbatim cache as the gRPC port uses it: keys from a call's header block and message, and answers with the
call's id.

Asked by each connection before a call is parsed; filled by `frontends/kserve/grpc`.
"""

from __future__ import annotations

from functools import partial

from control_plane.auth.access import Access
from control_plane.core.errors import ControlPlaneError, Overloaded
from control_plane.core.infer_call import InferCall
from control_plane.core.principal import Principal
from control_plane.frontends.grpc.handler import VerbatimAnswers, failure
from control_plane.inference.caching.verbatim_cache import MessageKey, VerbatimCache, size_class
from control_plane.protocols.grpc import PREFIX_BYTES, GrpcAnswer, GrpcHead
from control_plane.protocols.head_template import Http2Template
from control_plane.protocols.header_forwarding import HeaderForwarding
from control_plane.protocols.http2.headers import encode_fields, encode_varying
from control_plane.protocols.http2.stream import MAX_WHOLE_BYTES, WholeAnswer, WholeCall
from control_plane.protocols.per_request import ID_TAG, id_in_message, model_piece, names_model, per_request_fields
from control_plane.protocols.protobuf_fields import fields
from control_plane.triton.ports import GrpcCall

_MAX_BLOCK_BYTES = 2**14
"""What a block that is cut for a key may expand to; it has been accepted before, by the port's own limit."""


class GrpcVerbatimCache:
    """Verbatim cache of the gRPC port; calls that differ in trace context, timeout, request id or the id in their
    message share an entry."""

    def __init__(self, hits: VerbatimCache[WholeAnswer], access: Access, forwarding: HeaderForwarding, *, are_traced: bool) -> None:
        """`are_traced` is whether sampled requests have to go the ordinary way, which records them."""
        self._hits = hits
        self._access = access
        self._fields = per_request_fields(forwarding, are_traced=are_traced)

    def of_connection(self, *, max_header_bytes: int) -> VerbatimAnswers:
        """The lookup of one connection, whose calls have mostly heads of the same form; None for a call that has to
        be parsed."""
        return partial(self._answer, Http2Template(self._fields, max_bytes=max_header_bytes))

    def _answer(self, heads: Http2Template, call: WholeCall, waited_s: float) -> WholeAnswer | None:
        block, frame = call
        if not self._hits.entries:
            return None
        try:
            head = heads.last_key if block == heads.last_block else heads.key(block)
            answer = self._hits.answer((head, frame))
            if answer is None and (span := id_in_message(frame)) is not None:
                start, end = span
                answer = self._hits.answer((head, frame[:start] + frame[end:], end - start))
                if answer is not None:  # it ends with the id of its own call, which had the same length
                    headers, data, trailers = answer
                    return headers, data[: start - end] + frame[start:end], trailers
            if answer is None:
                answer = self._hits.refusal((size_class(len(frame)), block, model_piece(frame)), frame, waited_s=waited_s)
            return answer
        except Exception as exc:
            return b"", b"", encode_varying(failure(exc).trailers)

    def keep(self, came: GrpcCall, call: InferCall, key: bytes, answer: GrpcAnswer) -> None:
        """Keep the answer to a hit on the response cache's entry `key`."""
        frame, principal, answer_bytes = came.frame, came.principal, sum(map(len, answer.body))
        if not came.block or type(frame) is not bytes or not self._hits.takes(principal, len(frame) + answer_bytes):
            return
        if answer_bytes > MAX_WHOLE_BYTES or not self._is_valid(came.head, principal):
            return
        known = (encode_fields(answer.headers), b"".join(answer.body), encode_fields(answer.trailers))
        head = Http2Template(self._fields, max_bytes=_MAX_BLOCK_BYTES).key(came.block)
        message: MessageKey = (head, frame)
        span = id_in_message(frame) if call.request_id else None
        if span is not None and _is_only_id(frame, call.request_id, known[1]):
            start, end = span
            message = (head, frame[:start] + frame[end:], end - start)
        self._hits.keep(message, principal, call, key, known, size_bytes=len(head) + len(frame) + sum(map(len, known)))

    def keep_refusal(self, came: GrpcCall, call: InferCall, error: Overloaded) -> None:
        """Keep the refusal of a call for those with an equal header block to the same model."""
        frame, principal = came.frame, came.principal
        if not came.block or type(frame) is not bytes or not self._hits.takes(principal, 0) or not self._is_valid(came.head, principal):
            return
        piece = model_piece(frame)
        if names_model(piece, call.model_name):  # and not by a name that is repeated later
            refusal = b"", b"", encode_varying(failure(error).trailers)
            size_bytes = len(came.block) + len(piece) + len(refusal[2])
            kind = size_class(len(frame)), came.block, piece
            waited_s = None if came.head.timeout_s is None else came.waited_s
            self._hits.keep_refusal(kind, principal, call, error, refusal, waited_s=waited_s, size_bytes=size_bytes)

    def _is_valid(self, head: GrpcHead, principal: Principal) -> bool:
        """Whether the caller's key is still valid, which may have been revoked since the call came."""
        try:
            # No address is needed: only that of a token's sender is looked at.
            shown = self._access.reauthenticate(authorization=head.authorization, api_key=head.api_key, peer="", forwarded_for=None)
        except ControlPlaneError:
            return False
        return shown == principal


def _is_only_id(frame: bytes, request_id: str, answer: bytes) -> bool:
    """Whether the message has one field of the id, so that another id can be put in its place, and the answer ends
    with it."""
    ids = [value for tag, _, value in fields(memoryview(frame)[PREFIX_BYTES:]) if tag == ID_TAG]
    return ids == [request_id.encode()] and answer.endswith(request_id.encode())
