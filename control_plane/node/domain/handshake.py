"""Handshake of a node and a gateway that share a secret; pure.

Each side proves that it has the secret by an HMAC over all that both have said, with a label that says whose proof
it is, so that no proof can be sent back. The gateway proves first: who only connects learns nothing that could be
tried against guesses. Afterwards each frame carries an HMAC by a key of its direction and its number, so that
nobody on the way changes, repeats, drops or adds one. (SHA-256; the form is that of RFC 5802 without the password:
the secret is long.)
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256

NONCE_BYTES = 32
TAG_BYTES = 32
MIN_SECRET_CHARACTERS = 16
"""Least length of a secret. Whoever answers in a node's place gets a proof by which it can try guesses."""

GATEWAY, NODE = b"gateway", b"node"


@dataclass(frozen=True, slots=True)
class Handshake:
    """The secret and all that was said before the first proof."""

    secret: bytes
    said: bytes
    """Both sides' first frames, one after the other."""

    def proof(self, side: bytes) -> bytes:
        """Return the proof of that side."""
        return self._mac(b"proof of the " + side)

    def is_proof(self, side: bytes, proof: bytes) -> bool:
        """Whether this is that side's proof."""
        return hmac.compare_digest(self.proof(side), proof)

    def key(self, side: bytes) -> bytes:
        """Return the key of the frames that this side sends."""
        return self._mac(b"frames of the " + side)

    def _mac(self, purpose: bytes) -> bytes:
        return hmac.digest(self.secret, b"tidegate node\0" + purpose + b"\0" + sha256(self.said).digest(), "sha256")


class FrameSeal:
    """Seal of the frames of one direction of a connection, in their order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def tag(self, body: bytes) -> bytes:
        """Return the tag of the next frame."""
        self._number += 1
        return hmac.digest(self._key, self._number.to_bytes(8) + body, "sha256")

    def is_tag(self, body: bytes, tag: bytes) -> bool:
        """Whether the next frame is whole and genuine."""
        return hmac.compare_digest(self.tag(body), tag)
