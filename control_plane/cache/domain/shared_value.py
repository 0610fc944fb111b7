"""Codec of values in the shared cache: each carries a digest over itself and its key.

Called by `cache/adapters/redis_cache_lookups` and `redis_cache_writes`. A value that was cut short, changed,
stored under another key or written by another program is a miss. The digest uses no secret: it protects
against damage, not against an attacker who may write to the cache.
"""

from __future__ import annotations

from hashlib import blake2b

FORMAT = 1
"""Version of the layout. It is part of each Redis key as well, so that gateways of two versions do not see
each other's values during a rolling update.
"""

_MAGIC = b"TGC%c" % FORMAT
_DIGEST_BYTES = 16
_HEAD_BYTES = len(_MAGIC) + _DIGEST_BYTES


def name_of(key: bytes) -> bytes:
    """Return the Redis key under which the value of `key` is stored."""
    return b"tidegate:cache:%02d:%b" % (FORMAT, key)


def frame(key: bytes, value: bytes) -> bytes:
    """Encode `value` as it is stored for `key`; the key has 64 bytes at most, the limit of BLAKE2b's own."""
    return b"".join((_MAGIC, _digest(key, value), value))


def unframe(key: bytes, framed: bytes) -> bytes | None:
    """Decode the value stored for `key`; None if it is damaged or belongs to another key."""
    if len(framed) < _HEAD_BYTES or not framed.startswith(_MAGIC):
        return None
    value = framed[_HEAD_BYTES:]
    return value if framed[len(_MAGIC) : _HEAD_BYTES] == _digest(key, value) else None


def _digest(key: bytes, value: bytes) -> bytes:
    return blake2b(value, key=key, digest_size=_DIGEST_BYTES).digest()
