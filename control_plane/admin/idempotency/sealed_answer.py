"""Seal of an answer that is kept for a request that may come again: nobody reads it who has the store alone.

The answer to `POST /keys` has a secret. Its key is derived (HKDF-SHA256, RFC 5869) from what only the caller has: its
idempotency key and, where it shows one, its API key. The store has neither: records are named by a digest. Sealed by
ChaCha20-Poly1305 (RFC 8439) with a nonce for each answer. Called by `admin/idempotency/middleware`.
"""

from __future__ import annotations

import base64
import os
from hashlib import sha256

_NONCE_BYTES = 12
_USE = b"tidegate admin answer 1\0"


class AnswerSeal:
    """Name and seal of what one caller's requests with one idempotency key are answered."""

    def __init__(self, idempotency_key: str, *, tenant: str, key_id: str, secret: str) -> None:
        """`secret` is the API key that the caller shows; empty without one, when the idempotency key alone is what
        nobody guesses."""
        # Here, as in `open`: most gateways never keep an answer, and all would import it when they start.
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        who = b"\0".join(text.encode() for text in (tenant, key_id, idempotency_key))
        caller = sha256(b"tidegate admin caller 1\0" + b"\0".join((tenant.encode(), key_id.encode()))).hexdigest()
        self.name = f"{caller[:16]}.{sha256(b'tidegate admin request 1' + bytes(1) + who).hexdigest()}"
        material = b"\0".join(text.encode() for text in (secret, idempotency_key))
        self._cipher = ChaCha20Poly1305(HKDF(SHA256(), 32, salt=None, info=_USE + who).derive(material))

    def seal(self, answer: bytes, *, digest: str) -> str:
        """Return the sealed answer to the request of that digest."""
        nonce = os.urandom(_NONCE_BYTES)
        return base64.b64encode(nonce + self._cipher.encrypt(nonce, answer, digest.encode())).decode()

    def open(self, sealed: str, *, digest: str) -> bytes | None:
        """Return the answer; None: it was sealed with another API key, or has been changed."""
        from cryptography.exceptions import InvalidTag

        try:
            raw = base64.b64decode(sealed, validate=True)
            return self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], digest.encode())
        except (InvalidTag, ValueError):
            return None
