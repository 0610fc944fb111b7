"""The verbatim cache as the HTTP port uses it: keys from a request's head and body, and answers with the request's
id.

Asked by `frontends/http/connection` before a request is parsed; filled by `frontends/kserve/http_infer`.
"""

from __future__ import annotations

from control_plane.auth.access import Access
from control_plane.cache.keys import canonical_json
from control_plane.core.errors import ControlPlaneError, Overloaded
from control_plane.core.infer_call import InferCall
from control_plane.core.principal import Principal
from control_plane.frontends.common.caller import reauthenticate
from control_plane.frontends.common.http_errors import render_error
from control_plane.inference.caching.verbatim_cache import MessageKey, VerbatimCache, size_class
from control_plane.protocols.head_template import Http1Template
from control_plane.protocols.header_forwarding import HeaderForwarding
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.per_request import id_in_json, per_request_fields

_BEFORE_ID = b'\r\n\r\n{"id":"'
"""The end of a cached answer's head, and what stands before the id in its body."""


class HttpVerbatimCache:
    """Verbatim cache of the HTTP port; requests that differ in trace context, request id or the id in their JSON
    share an entry."""

    def __init__(self, hits: VerbatimCache[bytes], access: Access, forwarding: HeaderForwarding, *, are_traced: bool) -> None:
        """`are_traced` is whether sampled requests have to go the ordinary way, which records them."""
        self.fields = per_request_fields(forwarding, are_traced=are_traced)
        self.entries = hits.entries
        self._hits = hits
        self._access = access

    def answer(self, head: bytes, body: bytes) -> bytes | None:
        """The answer to the request of this body and this head's key (`Http1Template`); None: it has to be
        parsed.

        Raises LimitExceeded.
        """
        answer = self._hits.answer((head, body))
        if answer is None and (span := id_in_json(body)) is not None:
            start, end = span
            answer = self._hits.answer((head, body[:start] + body[end:], end - start))
            if answer is not None:  # whose own request had an id of the same length
                at = answer.index(_BEFORE_ID) + len(_BEFORE_ID)
                return b"%b%b%b" % (answer[:at], body[start:end], answer[at + end - start :])
        return self._hits.refusal((size_class(len(body)), head), body) if answer is None else answer

    def keep(self, came: HttpRequest, json: bytes, principal: Principal, call: InferCall, key: bytes, answer: HttpAnswer) -> None:
        """Keep the answer to a hit on the response cache's entry `key`; `json` is the body without binary data."""
        body, size_bytes = came.body, len(came.body) + len(answer.body)
        if not came.derived.head or type(body) is not bytes or not self._hits.takes(principal, size_bytes):
            return
        if not self._is_valid(came, principal):
            return
        head, whole = Http1Template(came.derived.head, self.fields).key, answer.head + answer.body
        message: MessageKey = (head, body)
        span = id_in_json(json) if call.request_id else None
        if span is not None:
            start, end = span
            # The entry is for all ids only if the response cache's own entry is, and the id is the one that was
            # parsed.
            is_certain = canonical_json(json, call.request_id) == json[:start] + json[end:]
            if is_certain and whole.find(_BEFORE_ID + json[start:end] + b'"') == len(answer.head) - 4:
                message = (head, body[:start] + body[end:], end - start)
        self._hits.keep(message, principal, call, key, whole, size_bytes=len(head) + len(body) + len(whole))

    def keep_refusal(self, came: HttpRequest, principal: Principal, call: InferCall, error: Overloaded) -> None:
        """Keep the refusal of a request for those with an equal head, which has the model's name."""
        if came.derived.head and self._hits.takes(principal, 0) and self._is_valid(came, principal):
            head, refusal = Http1Template(came.derived.head, self.fields).key, render_error(error, came.target)
            kind, whole = (size_class(len(came.body)), head), refusal.head + refusal.body
            size_bytes = len(head) + len(whole)
            self._hits.keep_refusal(kind, principal, call, error, whole, waited_s=came.waited_s, size_bytes=size_bytes)

    def _is_valid(self, came: HttpRequest, principal: Principal) -> bool:
        """Whether the caller's key is still valid, which may have been revoked since the request came."""
        try:
            return reauthenticate(self._access, came) == principal
        except ControlPlaneError:
            return False
