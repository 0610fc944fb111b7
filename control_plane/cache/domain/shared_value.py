"""An answer as it lies in a cache that others can write to: with a digest that ties it to its key.

Called by `cache/adapters/redis_cache`. What was cut short, changed, put under another key or written by anything else is not
there. The digest is no secret: it is against damage, not against somebody who may write to the cache on purpose.
"""

from __future__ import annotations

from hashlib import blake2b

FORMAT = 1
"""Part of a key's name too, so that gateways of two formats pass each other's answers by."""

_MAGIC = b"TGC%c" % FORMAT
_DIGEST_BYTES = 16
_HEAD_BYTES = len(_MAGIC) + _DIGEST_BYTES


def name_of(key: bytes) -> bytes:
    """Under which the answer of `key` lies."""
    return b"tidegate:cache:%02d:%b" % (FORMAT, key)


def frame(key: bytes, value: bytes) -> bytes:
    """`value` as it is stored for `key`, which has 64 bytes at most."""
    return b"".join((_MAGIC, _digest(key, value), value))


def unframe(key: bytes, framed: bytes) -> bytes | None:
    """What was stored for `key`; None when this is not it."""
    if len(framed) < _HEAD_BYTES or not framed.startswith(_MAGIC):
        return None
    value = framed[_HEAD_BYTES:]
    return value if framed[len(_MAGIC) : _HEAD_BYTES] == _digest(key, value) else None


def _digest(key: bytes, value: bytes) -> bytes:
    return blake2b(value, key=key, digest_size=_DIGEST_BYTES).digest()
