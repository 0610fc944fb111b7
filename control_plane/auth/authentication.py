"""Who asks: API keys against what the store remembers, tokens against their issuer's keys; called on every request.

The texts of refusals are constants: nothing of what was shown is repeated, logged or kept but as a digest.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections.abc import Callable
from hashlib import sha256

from control_plane.auth.domain.failed_attempts import FailedAttempts
from control_plane.auth.ports import TokenVerifier
from control_plane.core.errors import LimitExceeded, Unauthenticated
from control_plane.core.principal import Credentials, Principal
from control_plane.core.scope import Scopes
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.mirror import KnownState

_log = logging.getLogger(__name__)

_MAX_CACHED = 4096
_KEY_START = "tg_"
_KEY_TEXT = re.compile(r"tg_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NO_SECRET = "0" * 64
"""Compared with where there is no such key, so that time does not tell which ids exist."""

_NOTHING_SHOWN = "no API key or token was given; send one as `authorization: Bearer ...`, or a key as `x-api-key`"
_NOT_BEARER = "the header authorization must be `Bearer` and one API key or token"
_TWO_SHOWN = "authorization and x-api-key show two different keys; send one of them"
_NO_TOKENS = "tokens are not accepted here; show an API key"
_NOT_VALID = "the API key is not valid"
_EXPIRED = "the API key has expired"
_UNKNOWN_TENANT = "the token's tenant does not exist here"
_TOO_MANY_FAILURES = "too many failed attempts to authenticate from this address"
_TOO_MANY_CHECKS = "too many tokens from this address were forged or out of date to check another one now; show an API key, or try again"


class Authentication:
    """Turns what requests show into principals."""

    def __init__(
        self, known: KnownState, tokens: TokenVerifier | None, *, attempts: FailedAttempts, now_s: Callable[[], float] = time.time
    ) -> None:
        self._known = known
        self._tokens = tokens
        self._attempts = attempts
        self._now_s = now_s
        self._cached: dict[bytes, Principal] = {}
        """Of valid API keys, by their text's digest; emptied by every change of what is known."""
        self._accepted: set[bytes] = set()
        """Digests of tokens that were valid when they came last: their signatures may be checked again, whoever else shares the source."""
        self._generation = known.generation

    def authenticate(self, credentials: Credentials) -> Principal:
        """The principal whose key or token is shown.

        Raises:
            Unauthenticated: nothing is shown, or nothing that is valid. LimitExceeded: the same, from a source that has shown too much
                that was not; or a token that nobody has seen yet, from one whose forged tokens cost too much already.
        """
        shown, is_key = _read(credentials)
        try:
            return self._valid(shown, is_key=is_key, source=credentials.source)
        except Unauthenticated as exc:
            if exc.is_a_guess:
                self._slow(credentials.source)
            raise

    def confirm(self, credentials: Credentials) -> Principal:
        """The same of one who was let in before, with a stream that goes on: that what he shows has ended is no failed attempt."""
        shown, is_key = _read(credentials)
        return self._valid(shown, is_key=is_key, source=credentials.source)

    def _valid(self, shown: str, *, is_key: bool, source: str) -> Principal:
        digest = sha256(shown.encode("utf-8", "surrogatepass")).digest()
        principal = self._cached_one(digest)
        if principal is not None and (principal.expires_s is None or self._now_s() < principal.expires_s):
            return principal
        return self._check_key(shown, digest) if is_key else self._check_token(shown, digest, source)

    def _cached_one(self, digest: bytes) -> Principal | None:
        if self._generation != self._known.generation:
            self._generation = self._known.generation
            self._cached.clear()
        return self._cached.get(digest)

    def _slow(self, source: str) -> None:
        """One more attempt has failed. Raises LimitExceeded: after too many others."""
        now_s = self._now_s()
        refused_for_s = self._attempts.refused_for_s(source, now_s)
        if refused_for_s > 0:
            raise LimitExceeded(_TOO_MANY_FAILURES, retry_after_s=refused_for_s) from None
        if self._attempts.count(source, now_s) > 0:
            _log.warning("too many failed attempts to authenticate from one source, which is slowed", extra={"source": source})

    def _check_key(self, shown: str, digest: bytes) -> Principal:
        key = self._find(shown)
        now_s = self._now_s()
        if key is None or key.tenant not in self._known.tenants or key.is_revoked_at(now_s):
            raise Unauthenticated(_NOT_VALID)
        if not key.is_valid_at(now_s):
            raise Unauthenticated(_EXPIRED)
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()  # what is in use is soon there again
        principal = self._cached[digest] = _principal_of(key)
        return principal

    def _find(self, shown: str) -> ApiKey | None:
        match = _KEY_TEXT.fullmatch(shown)
        if match is None:
            return None
        key_id, secret = match.groups()
        key = self._known.keys.get(key_id)
        stored = _NO_SECRET if key is None else key.secret_sha256
        return key if hmac.compare_digest(sha256(secret.encode()).hexdigest(), stored) else None

    def _check_token(self, shown: str, digest: bytes, source: str) -> Principal:
        if self._tokens is None:
            raise Unauthenticated(_NO_TOKENS)
        checks = _SignatureChecks(self._attempts, source, self._now_s(), is_known=digest in self._accepted)
        try:
            principal = self._tokens.verify(shown, before_signature=checks.begin)
            if principal.tenant not in self._known.tenants:
                raise Unauthenticated(_UNKNOWN_TENANT)
        except Unauthenticated:
            self._accepted.discard(digest)
            checks.failed()
            raise
        if len(self._accepted) >= _MAX_CACHED:
            self._accepted.clear()
        self._accepted.add(digest)
        return principal


class _SignatureChecks:
    """What the check of one token's signature is charged to: the budget of its source, if it fails."""

    def __init__(self, attempts: FailedAttempts, source: str, now_s: float, *, is_known: bool) -> None:
        self._attempts = attempts
        self._source = source
        self._now_s = now_s
        self._is_known = is_known
        self._has_begun = False

    def begin(self) -> None:
        """Raises LimitExceeded: too many others from there have failed."""
        refused_for_s = 0.0 if self._is_known else self._attempts.checks_refused_for_s(self._source, self._now_s)
        if refused_for_s > 0:
            raise LimitExceeded(_TOO_MANY_CHECKS, retry_after_s=refused_for_s)
        self._has_begun = True

    def failed(self) -> None:
        if self._has_begun:
            self._attempts.count_check(self._source, self._now_s)


def _read(credentials: Credentials) -> tuple[str, bool]:
    """What is shown, and whether it is an API key. Raises Unauthenticated."""
    bearer = _read_bearer(credentials.authorization) if credentials.authorization else None
    api_key = credentials.api_key or None
    if bearer is None and api_key is None:
        raise Unauthenticated(_NOTHING_SHOWN)
    if bearer is not None and api_key is not None and bearer != api_key:
        raise Unauthenticated(_TWO_SHOWN)
    if bearer is None:
        return api_key or "", True
    return bearer, api_key is not None or bearer.startswith(_KEY_START)


def _read_bearer(header: str) -> str:
    scheme, _, shown = header.strip().partition(" ")
    if scheme.lower() != "bearer" or not shown.strip():
        raise Unauthenticated(_NOT_BEARER)
    return shown.strip()


def _principal_of(key: ApiKey) -> Principal:
    ends_s = [end_s for end_s in (key.expires_s, key.revoked_s) if end_s is not None]
    return Principal(tenant=key.tenant, key_id=key.id, scopes=Scopes(key.scopes), expires_s=min(ends_s, default=None), is_known=True)
