"""Verifier of JSON Web Tokens (RFC 7519) by the rules of RFC 8725; implements `auth/ports.TokenVerifier`.

The key decides the algorithm; issuer, audience and expiry are required; refusals repeat nothing of a token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import jwt

from control_plane.auth.adapters.jwks import JwksCache, RefreshIntervals
from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.errors import InvalidRequest, StartupError, Unauthenticated
from control_plane.core.model import MODEL_NAME
from control_plane.core.principal import Principal
from control_plane.core.scope import Scope, Scopes, parse_scope
from control_plane.host.network.exposure import is_loopback
from control_plane.settings import AuthenticationSettings

_LEEWAY_S = 30
"""Tolerated difference between the issuer's clock and ours."""

_MAX_TOKEN_CHARS = 8192
_MAX_SCOPES = 100
_MAX_CACHED = 4096
_MAX_SUBJECT_CHARS = 128
_FOR_EVER_S = 2**53
"""Latest expiry, in seconds since 1970: greater numbers are not exact as floats."""

_EXPIRED = "the token has expired"
_REFUSALS: tuple[tuple[type[jwt.PyJWTError], str], ...] = (
    (jwt.ExpiredSignatureError, _EXPIRED),
    (jwt.ImmatureSignatureError, "the token is not valid yet"),
    (jwt.InvalidAudienceError, "the token is meant for another audience"),
    (jwt.InvalidIssuerError, "the token is of another issuer"),
    (jwt.MissingRequiredClaimError, "the token lacks one of the claims exp, iss and aud"),
)
_NOT_VALID = "the token is not valid"
_NO_KEYS = "tokens cannot be checked now: the keys of their issuer could not be read for too long"
_UNKNOWN_KEY = "the token is not signed with a key of its issuer, named by kid, for RS256, ES256 or EdDSA"


def _nothing() -> None: ...


class JwtVerifier:
    """Token verifier with a cache of verdicts; `run` keeps the issuer's keys up to date."""

    def __init__(
        self, settings: AuthenticationSettings, *, pace: RefreshIntervals | None = None, now_s: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._now_s = now_s
        self._keys = JwksCache(settings.jwks_url, pace=pace, now_s=now_s)
        self._cached = BoundedCache[bytes, Principal].of_entries(_MAX_CACHED)
        """Principals of valid tokens by digest: checking a signature takes a hundred times as long as this
        lookup.
        """
        self._generation = 0

    async def run(self) -> None:
        """Refresh the issuer's keys until cancelled; until they were read once, every token is refused."""
        await self._keys.run()

    def verify(self, token: str, *, before_signature: Callable[[], None] = _nothing) -> Principal:
        """Return the token's principal. Raises Unauthenticated.

        A token that was accepted before, or that names no key of the issuer, costs no signature check and no
        call of `before_signature`.
        """
        if not self._keys.are_fresh:
            self._keys.read_soon()  # where the clock was set ahead, or the machine has slept, no read has failed
            raise Unauthenticated(_NO_KEYS, counts_as_failed_attempt=False)
        if len(token) > _MAX_TOKEN_CHARS or not token.isascii():
            raise Unauthenticated(_NOT_VALID)
        # A key may have been withdrawn: what was signed with it must be verified anew.
        if self._generation != self._keys.generation:
            self._generation = self._keys.generation
            self._cached.clear()
        digest = sha256(token.encode()).digest()
        principal = self._cached.get(digest) or self._check(token, digest, before_signature)
        # Checked here as well, since a remembered token may have expired meanwhile.
        if principal.expires_s is not None and principal.expires_s <= self._now_s():
            raise Unauthenticated(_EXPIRED)
        return principal

    def _check(self, token: str, digest: bytes, before_signature: Callable[[], None]) -> Principal:
        principal = self._principal_of(self._claims(token, before_signature))
        self._cached.keep(digest, principal)
        return principal

    def _claims(self, token: str, before_signature: Callable[[], None]) -> Mapping[str, Any]:
        """Return the claims of a valid token. Raises Unauthenticated, `from None` since the library's text
        may repeat parts of the token.
        """
        try:
            header = jwt.get_unverified_header(token)
            # Before the signature is checked, so that a token with an unknown key costs next to nothing.
            key = self._keys.find(header.get("kid"), header.get("alg"))
            if key is None:
                raise Unauthenticated(_UNKNOWN_KEY, counts_as_failed_attempt=False)
            before_signature()
            return jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._settings.jwt_audience,
                issuer=self._settings.jwt_issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError as exc:
            raise Unauthenticated(next((text for kind, text in _REFUSALS if isinstance(exc, kind)), _NOT_VALID)) from None
        except (ValueError, TypeError, OverflowError, RecursionError):  # raised for claims and headers that the library did not foresee
            raise Unauthenticated(_NOT_VALID) from None

    def _principal_of(self, claims: Mapping[str, Any]) -> Principal:
        """Make the principal of valid claims. Raises Unauthenticated: they name no tenant."""
        settings = self._settings
        tenant, subject = claims.get(settings.jwt_tenant_claim), claims.get("sub", "")
        if not isinstance(tenant, str) or not MODEL_NAME.fullmatch(tenant):
            raise Unauthenticated(f"the token names no tenant in its claim {settings.jwt_tenant_claim!r}")
        return Principal(
            tenant=tenant,
            key_id=subject[:_MAX_SUBJECT_CHARS] if subject.isprintable() else "",
            scopes=Scopes(tuple(_scopes(claims.get(settings.jwt_scope_claim)))),
            expires_s=float(min(int(claims["exp"]), _FOR_EVER_S)) + _LEEWAY_S,
        )


def make_json_web_tokens(settings: AuthenticationSettings) -> JwtVerifier | None:
    """Make the verifier, or return None if no issuer is configured.

    Raises StartupError: the settings are incomplete, or the keys would be fetched without TLS.
    """
    demanded = (("jwt_issuer", settings.jwt_issuer), ("jwt_audience", settings.jwt_audience))
    if not settings.jwks_url:
        for name, value in demanded:
            if value:
                raise StartupError(f"{name} {value!r} is without use: jwks_url, where the issuer's keys are, is not given")
        return None
    _check_url(settings.jwks_url)
    for name, value in demanded:
        if not value:
            raise StartupError(f"jwks_url needs {name}: without it tokens that are meant for others would be accepted")
    return JwtVerifier(settings)


def _check_url(url: str) -> None:
    """Raise StartupError unless the URL is HTTPS, or HTTP on loopback, and holds no credentials."""
    try:
        parts = urlsplit(url)
        host, has_credentials = parts.hostname or "", parts.username is not None or parts.password is not None
        _ = parts.port
    except ValueError as exc:
        raise StartupError("jwks_url is no URL; expected https://HOST/PATH") from exc
    if has_credentials:
        raise StartupError("jwks_url must not hold a name or password: public keys need none, and URLs are logged")
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    if not host or not is_safe:
        raise StartupError(
            f"jwks_url {url!r}: expected https://HOST/PATH (http:// on loopback only): who can change keys on the way is let in"
        )


def _scopes(claim: object) -> Iterator[Scope]:
    """Yield the scopes in a claim, a text or a list; other words are skipped, since issuers add some such as
    `openid`.
    """
    words = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    for word in words[:_MAX_SCOPES]:
        try:
            yield parse_scope(str(word))
        except InvalidRequest:
            continue
