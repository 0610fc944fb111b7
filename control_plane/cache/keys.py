"""Keys of the response cache: digests of everything that a response depends on.

A `CacheScope` contributes the model, its route and the tenant; the canonical form of the request contributes the rest. The request
id is the caller's own and left out. If it is not certain which bytes are the id, they stay in the key, at the cost of fewer hits.

Source: KServe v2 inference protocol (JSON, `grpc_service.proto`) and Triton's binary tensor data extension.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256

from control_plane.core.fingerprint import Fingerprint
from control_plane.objects.domain.route import CachePolicy
from control_plane.protocols.protobuf_fields import fields

JSON_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_ID = re.compile(rb'"id"\s*:\s*(' + JSON_STRING + rb")", re.DOTALL)
_OWN_FIELDS = frozenset((1 << 3 | 2, 2 << 3 | 2, 3 << 3 | 2))
"""Tags of a ModelInferRequest's model_name, model_version and id: the model is in the key already, as it is
meant.
"""
_MAX_FIELDS = 4096
"""Most fields in a message that a key is made of: walking so many takes some milliseconds, in which nobody
else is served.
"""


def identity_of(*parts: bytes | bytearray) -> bytes:
    """Return the SHA-256 digest (32 bytes) of exactly these parts, in this order."""
    # The lengths come first, so that bytes moved from one part to the next give another digest. A collision
    # would be another caller's response, so the digest is a cryptographic one.
    return sha256(b"".join((b"".join([b"%d:" % len(part) for part in parts]), *parts))).digest()


@dataclass(frozen=True, slots=True)
class CacheScope:
    """Cache key prefix and policy for one model, route and tenant, valid until the model is loaded anew or
    purged.
    """

    model: str
    fingerprint: Fingerprint
    generation: str
    """Id of the model's last purge; changes with each purge."""
    policy: CachePolicy
    tenant: str
    """The tenant whose callers alone share the entries; empty where all callers share them."""
    seed: bytes = field(repr=False)
    """Digest of all the fields above: the prefix of each key."""

    def key(self, *parts: bytes | bytearray) -> bytes:
        """Return the 32-byte key of the request that consists of exactly these `parts`, in this order.

        Each kind of caller must always use the same number of parts, or keys of two kinds could collide.
        """
        return identity_of(self.seed, *parts)


def canonical_json(text: bytes, request_id: str) -> bytes:
    """Return a request's JSON with an empty id; unchanged where it is not certain which member is the id."""
    # An input or a parameter may have the name "id" too, and `\u` may spell it without these letters: then
    # nothing is replaced.
    if not request_id or b"\\u" in text or text.count(b'"id"') != 1:
        return text
    match = _ID.search(text)
    return text if match is None else b"%b%b%b" % (text[: match.start(1)], b'""', text[match.end(1) :])


def canonical_message(message: bytes | memoryview) -> bytes | None:
    """Return a ModelInferRequest without its id and the model's name and version; None if it has more than
    `_MAX_FIELDS` fields.

    Name and version are in the key already, after routes were followed. Raises InvalidRequest (not a protobuf
    message).
    """
    kept: list[memoryview] = []
    for number, (tag, data, _) in enumerate(fields(memoryview(message))):
        if number == _MAX_FIELDS:
            return None
        if tag not in _OWN_FIELDS:
            kept.append(data)
    return b"".join(kept)
