"""Authentication: API keys are checked against the object mirror, tokens against their issuer's keys. Runs on
every request.

The texts of refusals are constants: credentials are never repeated or logged, and remembered only as digests.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections.abc import Callable
from hashlib import sha256

from control_plane.auth.domain.auth_backoff import AuthBackoff
from control_plane.auth.ports import TokenVerifier
from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.errors import LimitExceeded, Unauthenticated
from control_plane.core.principal import Credentials, Principal
from control_plane.core.scope import Scopes
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.mirror import ObjectMirror

_log = logging.getLogger(__name__)

_MAX_CACHED = 4096
"""Most credentials whose check is remembered, of each kind."""
_KEY_START = "tg_"
_KEY_TEXT = re.compile(r"tg_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NO_SECRET = "0" * 64
"""Digest to compare with where no key has the id: the comparison takes as long, so timing does not tell which
ids exist.
"""

_NOTHING_SHOWN = "no API key or token was given; send one as `authorization: Bearer ...`, or a key as `x-api-key`"
_NOT_BEARER = "the header authorization must be `Bearer` and one API key or token"
_TWO_SHOWN = "authorization and x-api-key show two different keys; send one of them"
_NO_TOKENS = f"this is no API key (one begins with {_KEY_START}), and tokens are not accepted here"
_NOT_VALID = "the API key is not valid"
_EXPIRED = "the API key has expired"
_UNKNOWN_TENANT = "the token's tenant does not exist here"
_TOO_MANY_FAILURES = "too many failed attempts to authenticate from this address"
_TOO_MANY_CHECKS = "too many tokens from this address were forged or out of date to check another one now; show an API key, or try again"


class Authentication:
    """Authenticator of requests: turns an API key or a token into a principal."""

    def __init__(
        self,
        mirror: ObjectMirror,
        tokens: TokenVerifier | None,
        *,
        attempts: AuthBackoff,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now_s` is the wall clock, in seconds since 1970; `attempts` are timed by `monotonic_s`, which nobody puts back."""
        self._mirror = mirror
        self._tokens = tokens
        self._attempts = attempts
        self.now_s = now_s
        self._monotonic_s = monotonic_s
        self._cached = BoundedCache[bytes, Principal].of_entries(_MAX_CACHED)
        """Principals of valid API keys by the digest of the key's text; emptied whenever a stored object
        changes.
        """
        self._accepted = BoundedCache[bytes, bool].of_entries(_MAX_CACHED)
        """Digests of tokens that were valid when last shown. Their signatures are checked again even if the
        source has used up its budget, so that a client does not suffer from forged tokens that come from the
        same address.
        """
        self._generation = mirror.generation

    def authenticate(self, credentials: Credentials) -> Principal:
        """Return the principal of the credentials.

        Raises:
            Unauthenticated: there are no credentials, or they are not valid.
            LimitExceeded: they are not valid, and their source has failed too often; or they are a new token,
                and checking forged ones from the same source has cost too much already.
        """
        text, is_key = _read(credentials)
        try:
            return self._principal(text, is_key=is_key, source=credentials.source)
        except Unauthenticated as exc:
            if exc.counts_as_failed_attempt:
                self._back_off(credentials.source)
            raise

    def reauthenticate(self, credentials: Credentials) -> Principal:
        """Authenticate the caller of an open stream again; credentials that have expired since do not count
        as a failed attempt.
        """
        text, is_key = _read(credentials)
        return self._principal(text, is_key=is_key, source=credentials.source)

    def _principal(self, text: str, *, is_key: bool, source: str) -> Principal:
        """Return the principal of a key or token, remembered or checked anew. Raises Unauthenticated, LimitExceeded."""
        digest = sha256(text.encode("utf-8", "surrogatepass")).digest()
        principal = self._remembered(digest)
        # An expiry is looked at here, too: it changes no stored object, which would empty the cache.
        if principal is not None and (principal.expires_s is None or self.now_s() < principal.expires_s):
            return principal
        return self._check_key(text, digest) if is_key else self._check_token(text, digest, source)

    def _remembered(self, digest: bytes) -> Principal | None:
        # Any change may have revoked a key or removed its tenant.
        if self._generation != self._mirror.generation:
            self._generation = self._mirror.generation
            self._cached.clear()
        return self._cached.get(digest)

    def _back_off(self, source: str) -> None:
        """Count a failed attempt of this source. Raises LimitExceeded if it has failed too often before."""
        now_s = self._monotonic_s()
        refused_for_s = self._attempts.refused_for_s(source, now_s)
        if refused_for_s > 0:
            raise LimitExceeded(_TOO_MANY_FAILURES, retry_after_s=refused_for_s) from None
        if self._attempts.count(source, now_s) > 0:
            _log.warning("too many failed attempts to authenticate from one source, which is slowed", extra={"source": source})

    def _check_key(self, text: str, digest: bytes) -> Principal:
        """Check an API key against the object mirror and remember its principal. Raises Unauthenticated."""
        key = self._find(text)
        now_s = self.now_s()
        # One answer to all of these: who guesses does not learn which ids there are.
        if key is None or key.tenant not in self._mirror.tenants or key.is_revoked_at(now_s):
            raise Unauthenticated(_NOT_VALID)
        if not key.is_valid_at(now_s):
            raise Unauthenticated(_EXPIRED)
        principal = _principal_of(key)
        self._cached.keep(digest, principal)
        return principal

    def _find(self, text: str) -> ApiKey | None:
        """Return the stored key of this text; None if there is no such id, or its secret is another."""
        match = _KEY_TEXT.fullmatch(text)
        if match is None:
            return None
        key_id, secret = match.groups()
        # Found by its id, which is no secret; the secret is then compared in constant time.
        key = self._mirror.keys.get(key_id)
        stored = _NO_SECRET if key is None else key.secret_sha256
        return key if hmac.compare_digest(sha256(secret.encode()).hexdigest(), stored) else None

    def _check_token(self, text: str, digest: bytes, source: str) -> Principal:
        """Verify a token, charging a failed signature check to its source. Raises Unauthenticated,
        LimitExceeded.
        """
        if self._tokens is None:
            raise Unauthenticated(_NO_TOKENS)
        checks = _SignatureCharge(self._attempts, source, self._monotonic_s(), is_known=bool(self._accepted.get(digest)))
        try:
            principal = self._tokens.verify(text, before_signature=checks.begin)
            if principal.tenant not in self._mirror.tenants:
                raise Unauthenticated(_UNKNOWN_TENANT)
        except Unauthenticated:
            # Shown again, its check is charged to its source, like that of any unknown token.
            self._accepted.forget(digest)
            checks.failed()
            raise
        self._accepted.keep(digest, True)
        return principal


class _SignatureCharge:
    """Charge for the check of one token's signature: a failed check is charged to the budget of the token's
    source.
    """

    def __init__(self, attempts: AuthBackoff, source: str, now_s: float, *, is_known: bool) -> None:
        self._attempts = attempts
        self._source = source
        self._now_s = now_s
        self._is_known = is_known
        self._has_begun = False

    def begin(self) -> None:
        """Raise LimitExceeded if the source's budget for failed signature checks is used up."""
        refused_for_s = 0.0 if self._is_known else self._attempts.checks_refused_for_s(self._source, self._now_s)
        if refused_for_s > 0:
            raise LimitExceeded(_TOO_MANY_CHECKS, retry_after_s=refused_for_s)
        self._has_begun = True

    def failed(self) -> None:
        if self._has_begun:
            self._attempts.count_check(self._source, self._now_s)


def _read(credentials: Credentials) -> tuple[str, bool]:
    """Return the text of the key or token, and whether it is an API key. Raises Unauthenticated."""
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
    scheme, _, text = header.strip().partition(" ")
    if scheme.lower() != "bearer" or not text.strip():
        raise Unauthenticated(_NOT_BEARER)
    return text.strip()


def _principal_of(key: ApiKey) -> Principal:
    ends_s = [end_s for end_s in (key.expires_s, key.revoked_s) if end_s is not None]
    return Principal(tenant=key.tenant, key_id=key.id, scopes=Scopes(key.scopes), expires_s=min(ends_s, default=None), is_known=True)
