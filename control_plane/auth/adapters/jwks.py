"""Cache of an issuer's public keys, fetched from where the issuer publishes them (JSON Web Key Set, RFC
7517).

It is refreshed in the background: a request never waits for the issuer, and an outage of the issuer of less
than an hour does not affect requests. Used by `auth/adapters/jwt`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
import orjson

from control_plane.concurrency.used_connection import UsedConnection

_log = logging.getLogger(__name__)

_MAX_BYTES = 2**20
_MAX_KEYS = 100
"""Keys that are read of a set. Issuers have two or three; each takes some ten microseconds to read."""

_MIN_RSA_BITS = 2048
"""Least size of an RSA key (RFC 7518, section 3.3)."""

_ALGORITHM_OF: Mapping[tuple[object, object], str] = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
"""Algorithm by key type and curve. The key decides how it is used, never the token, which an attacker may
have written (RFC 8725, section 3.1). No algorithm is symmetric: with one, an attacker could sign with the
public key as the secret.
"""

_ALGORITHMS = frozenset(_ALGORITHM_OF.values())

KeyName = tuple[str, str]
"""A key's id (`kid`) and its algorithm: issuers may give keys of different types the same id (RFC 7517,
section 4.5).
"""


@dataclass(frozen=True, slots=True)
class RefreshIntervals:
    """Intervals of the key cache, in seconds."""

    refresh_s: float = 300.0
    """Time between two reads. A key that its issuer has withdrawn is accepted for at most this long."""

    at_least_s: float = 10.0
    """Least time between two reads. A token with an unknown key brings the next read forward, and anybody can
    send such tokens.
    """

    stale_s: float = 3600.0
    """Time without a successful read after which keys are no longer accepted: their issuer may have withdrawn
    any of them.
    """

    fetch_timeout_s: float = 5.0


class UnusableKeys(Exception):
    """The issuer's answer cannot be used as a key set. Never raised to callers of this package."""


class JwksCache:
    """Background-refreshed cache of one issuer's keys, as of the last successful read."""

    def __init__(self, url: str, *, pace: RefreshIntervals | None = None, now_s: Callable[[], float] = time.time) -> None:
        self._url = url
        self._pace = pace or RefreshIntervals()
        self._now_s = now_s
        self._keys: Mapping[KeyName, jwt.PyJWK] = {}
        self._ids: frozenset[str] = frozenset()
        self._body = b""
        self._read_s = float("-inf")
        self._has_failed = False
        self._wanted = asyncio.Event()
        self.generation = 0
        """Counter that grows when the keys change; verdicts of before must be reached anew."""

    @property
    def are_fresh(self) -> bool:
        """Whether the last successful read is recent enough for the keys to be used."""
        return self._now_s() - self._read_s < self._pace.stale_s

    def read_soon(self) -> None:
        """Bring the next read forward."""
        self._wanted.set()

    def find(self, key_id: object, algorithm: object) -> jwt.PyJWK | None:
        """Return the key that a token's header names, if it is for that algorithm; an unknown id brings the
        next read forward.
        """
        if not isinstance(key_id, str) or not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
            return None
        if key_id not in self._ids:
            self.read_soon()
        return self._keys.get((key_id, algorithm))

    async def run(self) -> None:
        """Refresh the keys until cancelled."""
        pace = self._pace
        # Plain HTTP is allowed on loopback only, which must not be reached through a proxy that the
        # environment names.
        is_tls = self._url.startswith("https:")  # else the certificates of authorities, which take 20 ms to read, are of no use
        async with httpx.AsyncClient(timeout=pace.fetch_timeout_s, trust_env=is_tls, verify=is_tls) as client:
            while True:
                # Before the read: a token with an unknown key that is shown during it may have been signed with a
                # key that the answer does not hold yet.
                self._wanted.clear()
                await self._refresh(client)
                await asyncio.sleep(pace.at_least_s)
                # After a failure the next attempt follows now: the keys that are held are good for `stale_s` only.
                if not self._has_failed:
                    await self._wait_until_due()

    async def _wait_until_due(self) -> None:
        """Wait for the next refresh, or until `read_soon` asks for one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.refresh_s - self._pace.at_least_s):
                await self._wanted.wait()

    async def _refresh(self, client: httpx.AsyncClient) -> None:
        """Fetch the keys once. A failure leaves the old ones in force, and is logged once until a fetch
        succeeds.
        """
        try:
            body = await self._fetch(client)
            if body != self._body:
                self._take(body)
        except (httpx.HTTPError, UnusableKeys, TimeoutError) as exc:
            if not self._has_failed:
                _log.error("the keys of the tokens' issuer cannot be read, the old ones stay in force for an hour: %s", _describe(exc))
            self._has_failed = True
            return
        if self._has_failed:
            _log.info("the keys of the tokens' issuer can be read again")
        self._read_s, self._has_failed = self._now_s(), False

    async def _fetch(self, client: httpx.AsyncClient) -> bytes:
        """Fetch the key set, without content encoding: a few compressed bytes could inflate to very many.
        Raises UnusableKeys, httpx.HTTPError, TimeoutError.
        """
        body = bytearray()
        headers = {"accept": "application/jwk-set+json, application/json", "accept-encoding": "identity"}
        used = UsedConnection()
        call = client.stream("GET", self._url, headers=headers, extensions=used.trace)
        async with asyncio.timeout(self._pace.fetch_timeout_s), used, call as answer:
            if answer.status_code != httpx.codes.OK:
                raise UnusableKeys(f"status {answer.status_code}")
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > _MAX_BYTES:
                    raise UnusableKeys(f"more than {_MAX_BYTES} bytes")
        return bytes(body)

    def _take(self, body: bytes) -> None:
        keys = read_keys(body)
        self._keys, self._body = keys, body
        self._ids = frozenset(key_id for key_id, _ in keys)
        self.generation += 1
        _log.info("keys of the tokens' issuer taken up", extra={"keys": len(keys)})


def read_keys(body: bytes) -> dict[KeyName, jwt.PyJWK]:
    """Return those keys of a key set that may verify tokens; others are skipped. Raises UnusableKeys: there
    is none.
    """
    try:
        found = orjson.loads(body)
    except ValueError as exc:
        raise UnusableKeys("it is not JSON") from exc
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise UnusableKeys("it is no JSON Web Key Set")
    keys = {(jwk["kid"], key.algorithm_name): key for jwk in listed[:_MAX_KEYS] if (key := _read_key(jwk)) is not None}
    if not keys:
        raise UnusableKeys(f"it holds no key for {', '.join(sorted(_ALGORITHMS))} that has an id (kid)")
    return keys


def _read_key(jwk: Any) -> jwt.PyJWK | None:
    """Parse a key of a set; None if it is malformed, too weak, or not for verifying signatures."""
    if not isinstance(jwk, dict) or not isinstance(jwk.get("kid"), str) or not all(isinstance(jwk.get(name, ""), str) for name in _TEXTS):
        return None
    algorithm = _ALGORITHM_OF.get((jwk.get("kty"), jwk.get("crv")))
    if algorithm is None or not _is_for_verifying(jwk, algorithm):
        return None
    try:
        key = jwt.PyJWK(jwk, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    return None if algorithm == "RS256" and key.key.key_size < _MIN_RSA_BITS else key


_TEXTS = ("kty", "crv", "alg", "use", "n", "e", "x", "y")


def _is_for_verifying(jwk: dict[str, Any], algorithm: str) -> bool:
    """Whether a key is meant for verifying signatures; a private key (`d`) that was published is refused,
    since all know it.
    """
    operations = jwk.get("key_ops", ["verify"])
    is_right = jwk.get("use", "sig") == "sig" and jwk.get("alg", algorithm) == algorithm
    return is_right and isinstance(operations, list) and "verify" in operations and "d" not in jwk


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__
