from __future__ import annotations

import hashlib
import hmac
import json
import logging
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from control_plane.auth.adapters.jwt import JwtVerifier, make_json_web_tokens
from control_plane.core.errors import LimitExceeded, StartupError, Unauthenticated
from control_plane.core.principal import Principal
from control_plane.core.scope import Right, Scope, Scopes
from control_plane.settings import AuthenticationSettings
from tests.aio import run
from tests.unit.auth.adapters.jwks_issuer import AUDIENCE, ISSUER, Bench, JwksServer, claims, forge, private_key, public_jwk, seconds, token

SCOPES = Scopes((Scope(Right.INFER, "text_*"), Scope(Right.METRICS)))


def knowing(**settings: Any) -> JwtVerifier:
    """Return a verifier that has read its keys from a server, which has stopped since."""

    async def main() -> JwtVerifier:
        with JwksServer().serving() as server:
            async with (bench := Bench(server, **settings)).running():
                return bench.tokens

    return run(main())


def verify(text: str, **settings: Any) -> Principal:
    return knowing(**settings).verify(text)


shared = cache(knowing)
"""Verifier for tests that do not change it."""


def test_only_what_a_key_of_the_issuer_may_have_signed_costs_a_signature_check() -> None:
    tokens, checks = knowing(), list[str]()
    good = token()
    shown = {
        "good": good,
        "good again": good,
        "forged": changed(token(), tenant="other"),
        "unknown key": token(head={"kid": "another"}),
        "no token": "garbage",
        "too long": "a" * 10_000,
    }
    for name, text in shown.items():
        with suppress(Unauthenticated):
            tokens.verify(text, before_signature=lambda name=name: checks.append(name))  # type: ignore[misc]
    assert checks == ["good", "forged"]


def test_what_forbids_the_check_is_what_the_caller_is_told() -> None:
    def refuse() -> None:
        raise LimitExceeded("too many")

    with pytest.raises(LimitExceeded):
        knowing().verify(token(), before_signature=refuse)


# What is accepted


@pytest.mark.parametrize("kind", ["RS256", "ES256", "EdDSA"])
def test_a_token_stands_for_its_tenant_subject_and_scopes(kind: str) -> None:
    expires_s = seconds(600)
    assert verify(token(kind, exp=expires_s)) == Principal("acme", "somebody", SCOPES, expires_s=expires_s + 30)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(lambda: token(aud=["other", AUDIENCE]), id="one of several audiences"),
        pytest.param(lambda: token(exp=seconds(-15)), id="expired within the leeway"),
        pytest.param(lambda: token(nbf=seconds(15)), id="valid within the leeway"),
        pytest.param(lambda: token(iat=seconds(-3600), nbf=seconds(-3600), jti="x"), id="with all that is usual"),
        pytest.param(lambda: token(scope=["infer:text_*", "metrics", "openid", 7, None, {"a": 1}]), id="scopes as a list"),
        pytest.param(lambda: token(head={"typ": "at+jwt"}), id="another type of token"),
        pytest.param(lambda: token(exp=10**300), id="valid for ever"),
    ],
)
def test_accepted(text: Callable[[], str]) -> None:
    assert verify(text()).scopes == SCOPES


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (None, ()),
        ("", ()),
        ("openid profile", ()),
        ({"admin": True}, ()),
        (7, ()),
        ("admin", (Scope(Right.ADMIN),)),
        ("infer: admin:x", ()),
    ],
)
def test_what_is_no_scope_gives_none(scope: object, expected: tuple[Scope, ...]) -> None:
    assert verify(token(scope=scope)).scopes == Scopes(expected)


def test_claims_have_the_names_that_are_set() -> None:
    text = token(tenant=None, scope=None, **{"https://example/org": "other", "scp": "admin"})
    principal = verify(text, jwt_tenant_claim="https://example/org", jwt_scope_claim="scp")
    assert (principal.tenant, principal.scopes) == ("other", Scopes((Scope(Right.ADMIN),)))


@pytest.mark.parametrize(("subject", "key_id"), [(None, ""), ("x" * 500, "x" * 128), ("a\nb", ""), ("a b", "a b")])
def test_a_subject_is_fit_for_logs(subject: str | None, key_id: str) -> None:
    assert verify(token(sub=subject)).key_id == key_id


# What is refused

NOT_VALID = "the token is not valid"
UNKNOWN_KEY = "the token is not signed with a key of its issuer"


def hs256(secret: bytes) -> Callable[[bytes], bytes]:
    return lambda signed: hmac.new(secret, signed, hashlib.sha256).digest()


def public(kind: str, encoding: Encoding) -> bytes:
    return private_key(kind).public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)


def signed_as(kind: str, *, head: dict[str, Any]) -> str:
    """Return a token whose signature is valid, under a header that was exchanged."""
    signer = jwt.get_algorithm_by_name(kind)
    return forge(head, claims(), lambda signed: signer.sign(signed, private_key(kind)))


def changed(text: str, **changes: Any) -> str:
    """Return the token with other claims under the same signature."""
    head, _, signature = text.split(".")
    return f"{head}.{forge({}, claims(**changes)).split('.')[1]}.{signature}"


REFUSED: dict[str, tuple[Callable[[], str], str]] = {
    # signatures and keys
    "alg none": (lambda: forge({"alg": "none", "kid": "RS256-0"}, claims()), UNKNOWN_KEY),
    "alg NonE": (lambda: forge({"alg": "NonE", "kid": "RS256-0"}, claims()), UNKNOWN_KEY),
    "alg none with a signature": (lambda: signed_as("RS256", head={"alg": "none", "kid": "RS256-0"}), UNKNOWN_KEY),
    "no alg": (lambda: forge({"kid": "RS256-0"}, claims()), UNKNOWN_KEY),
    "alg that is no text": (lambda: forge({"alg": ["RS256"], "kid": "RS256-0"}, claims()), UNKNOWN_KEY),
    "the public key as a secret": (
        lambda: forge({"alg": "HS256", "kid": "RS256-0"}, claims(), hs256(public("RS256", Encoding.PEM))),
        UNKNOWN_KEY,
    ),
    "the public key's DER as a secret": (
        lambda: forge({"alg": "HS256", "kid": "RS256-0"}, claims(), hs256(public("RS256", Encoding.DER))),
        UNKNOWN_KEY,
    ),
    "the published key as a secret": (
        lambda: forge({"alg": "HS256", "kid": "ES256-0"}, claims(), hs256(json.dumps(public_jwk("ES256")).encode())),
        UNKNOWN_KEY,
    ),
    "a secret of no length": (lambda: forge({"alg": "HS256", "kid": "RS256-0"}, claims(), hs256(b"")), UNKNOWN_KEY),
    "RS256 for a key of another type": (lambda: signed_as("RS256", head={"alg": "RS256", "kid": "ES256-0"}), UNKNOWN_KEY),
    "ES256 for a key of another type": (lambda: signed_as("ES256", head={"alg": "ES256", "kid": "EdDSA-0"}), UNKNOWN_KEY),
    "RS512": (lambda: token("RS256", head={"alg": "RS512"}), UNKNOWN_KEY),
    "PS256": (lambda: signed_as("RS256", head={"alg": "PS256", "kid": "RS256-0"}), UNKNOWN_KEY),
    "wrong kid": (lambda: token(head={"kid": "another"}), UNKNOWN_KEY),
    "kid of another key": (lambda: token("ES256", 1, head={"kid": "ES256-0"}), NOT_VALID),
    "no kid": (lambda: forge({"alg": "ES256"}, claims()), UNKNOWN_KEY),
    "kid that is no text": (lambda: forge({"alg": "ES256", "kid": 0}, claims()), NOT_VALID),
    "kid that is a list": (lambda: forge({"alg": "ES256", "kid": ["ES256-0"]}, claims()), NOT_VALID),
    "kid with a path": (lambda: token(head={"kid": "../../dev/null"}), UNKNOWN_KEY),
    "wrong signature": (lambda: token("RS256", 1, head={"kid": "RS256-0"}), NOT_VALID),
    "a signature cut short": (lambda: token("EdDSA")[:-4], NOT_VALID),
    "no signature": (lambda: token().rpartition(".")[0] + ".", NOT_VALID),
    "a signature of zeros": (lambda: forge({"alg": "ES256", "kid": "ES256-0"}, claims(), lambda _: b"\0" * 64), NOT_VALID),
    "changed claims": (lambda: changed(token(), tenant="other"), NOT_VALID),
    "its own key in the head": (lambda: token("ES256", 1, head={"kid": "ES256-0", "jwk": public_jwk("ES256", 1)}), NOT_VALID),
    "its own key's address in the head": (lambda: token("ES256", 1, head={"kid": "ES256-0", "jku": "http://127.0.0.1/"}), NOT_VALID),
    "an extension that must be understood": (
        lambda: signed_as("ES256", head={"alg": "ES256", "kid": "ES256-0", "crit": ["x"], "x": 1}),
        NOT_VALID,
    ),
    "a payload that is elsewhere": (
        lambda: signed_as("ES256", head={"alg": "ES256", "kid": "ES256-0", "crit": ["b64"], "b64": False}),
        NOT_VALID,
    ),
    # claims
    "wrong issuer": (lambda: token(iss="https://evil.example"), "another issuer"),
    "an issuer that begins the same": (lambda: token(iss=ISSUER + ".evil.example"), "another issuer"),
    "the beginning of the issuer": (lambda: token(iss=ISSUER[:-1]), "another issuer"),
    "no issuer": (lambda: token(iss=None), "lacks one of the claims"),
    "wrong audience": (lambda: token(aud="other"), "another audience"),
    "wrong audiences": (lambda: token(aud=["other", AUDIENCE.upper(), AUDIENCE + "2"]), "another audience"),
    "an audience within one": (lambda: token(aud=f"other {AUDIENCE}"), "another audience"),
    "no audience": (lambda: token(aud=None), "lacks one of the claims"),
    "audiences of no length": (lambda: token(aud=[]), "lacks one of the claims"),
    "an audience that is no text": (lambda: token(aud={AUDIENCE: 1}), "another audience"),
    "expired": (lambda: token(exp=seconds(-60)), "has expired"),
    "expired long ago": (lambda: token(exp=0), "has expired"),
    "no exp": (lambda: token(exp=None), "lacks one of the claims"),
    "exp that is no number": (lambda: token(exp="tomorrow"), NOT_VALID),
    "exp that is infinite": (lambda: signed_raw(b'{"iss":"%s","aud":"%s","tenant":"acme","exp":1e999}'), NOT_VALID),
    "exp that is a list": (lambda: token(exp=[2**40]), NOT_VALID),
    "not yet valid": (lambda: token(nbf=seconds(60)), "not valid yet"),
    "issued in the future": (lambda: token(iat=seconds(3600)), "not valid yet"),
    "no tenant": (lambda: token(tenant=None), "no tenant in its claim 'tenant'"),
    "a tenant that is no text": (lambda: token(tenant=["acme"]), "no tenant in its claim"),
    "a tenant that cannot be one": (lambda: token(tenant="../acme"), "no tenant in its claim"),
    "a subject that is no text": (lambda: forge_subject(7), NOT_VALID),
    # what is no token
    "empty": (lambda: "", NOT_VALID),
    "dots": (lambda: "..", NOT_VALID),
    "garbage": (lambda: "garbage", NOT_VALID),
    "two parts": (lambda: token().rpartition(".")[0], NOT_VALID),
    "four parts": (lambda: token() + ".x", NOT_VALID),
    "encrypted": (lambda: ".".join(["e30"] * 5), NOT_VALID),
    "spaces": (lambda: " " + token(), NOT_VALID),
    "not ASCII": (lambda: token() + "ä", NOT_VALID),
    "a lone surrogate": (lambda: "\udcff" + token(), NOT_VALID),
    "a head that is a list": (lambda: forge([], claims()), NOT_VALID),
    "a deep head": (lambda: forge(b"[" * 5000, claims()), NOT_VALID),
    "a head with a huge number": (lambda: forge(b'{"alg": ' + b"9" * 5000 + b"}", claims()), NOT_VALID),
    "claims that are a list": (lambda: signed_raw(b"[]"), NOT_VALID),
    "claims that are not JSON": (lambda: signed_raw(b"{"), NOT_VALID),
    "deep claims": (lambda: signed_raw(b"[" * 5000), NOT_VALID),
    "too long": (lambda: token(padding="x" * 9000), NOT_VALID),
}


def signed_raw(body: bytes) -> str:
    signer = jwt.get_algorithm_by_name("ES256")
    body = body.replace(b"%s", ISSUER.encode(), 1).replace(b"%s", AUDIENCE.encode(), 1)
    return forge({"alg": "ES256", "kid": "ES256-0"}, body, lambda signed: signer.sign(signed, private_key("ES256")))


def forge_subject(subject: object) -> str:
    return signed_raw(json.dumps(claims(sub=subject)).encode())


@pytest.mark.parametrize(("make", "says"), REFUSED.values(), ids=REFUSED)
def test_refused_and_nothing_of_it_told(make: Callable[[], str], says: str, caplog: pytest.LogCaptureFixture) -> None:
    text = make()
    with caplog.at_level(logging.DEBUG), pytest.raises(Unauthenticated) as raised:
        verify(text)
    assert says in str(raised.value)
    told = caplog.text + "".join(repr(record.__dict__) for record in caplog.records) + "".join(traceback.format_exception(raised.value))
    assert not any(part in told for part in text.split(".") if len(part) > 20)


def test_what_is_accepted_is_not_told_either(caplog: pytest.LogCaptureFixture) -> None:
    text = token()
    with caplog.at_level(logging.DEBUG):
        verify(text)
    assert caplog.records
    assert not any(part in caplog.text for part in text.split("."))


@given(st.text(max_size=60) | st.lists(st.text("abcXYZ019-_=", max_size=30), max_size=4).map(".".join))
def test_nothing_made_up_is_accepted(text: str) -> None:
    with pytest.raises(Unauthenticated):
        shared().verify(text)


@given(
    st.dictionaries(
        st.sampled_from(["alg", "kid", "crit", "b64", "typ", "jwk"]), st.none() | st.text() | st.integers() | st.lists(st.text())
    )
)
def test_no_head_is_accepted_over_a_signature_that_is_not_its_own(head: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        shared().verify(forge({"alg": "ES256", "kid": "ES256-0", **head}, claims(), lambda _: b"\1" * 64))


# What may be set


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        pytest.param({"jwks_url": "http://issuer.example/k"}, "expected https://", id="in the clear"),
        pytest.param({"jwks_url": "http://127.0.0.1.example/k"}, "expected https://", id="not loopback"),
        pytest.param({"jwks_url": "file:///etc/keys"}, "expected https://", id="no HTTP"),
        pytest.param({"jwks_url": "https://"}, "expected https://", id="no host"),
        pytest.param({"jwks_url": "issuer.example"}, "expected https://", id="no URL"),
        pytest.param({"jwks_url": "https://[::1"}, "is no URL", id="half a URL"),
        pytest.param({"jwks_url": "https://issuer.example:port/"}, "is no URL", id="a port that is none"),
        pytest.param({"jwks_url": "https://name:hidden@issuer.example/"}, "must not hold a name or password", id="a password"),
        pytest.param({"jwt_issuer": ""}, "jwks_url needs jwt_issuer", id="no issuer"),
        pytest.param({"jwt_audience": ""}, "jwks_url needs jwt_audience", id="no audience"),
        pytest.param({"jwks_url": ""}, "jwt_issuer 'https://issuer.example' is without use", id="an issuer alone"),
        pytest.param({"jwks_url": "", "jwt_issuer": ""}, "jwt_audience 'tidegate' is without use", id="an audience alone"),
    ],
)
def test_settings_that_make_no_whole_are_refused(settings: dict[str, str], says: str) -> None:
    whole = {"jwks_url": "https://issuer.example/k", "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, **settings}
    with pytest.raises(StartupError, match=says) as raised:
        make_json_web_tokens(AuthenticationSettings(**whole))
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("url", ["https://issuer.example/k?v=1", "http://localhost:8/k", "http://127.0.0.1/k", "http://[::1]:8/k"])
def test_settings_that_do(url: str) -> None:
    made = make_json_web_tokens(AuthenticationSettings(jwks_url=url, jwt_issuer=ISSUER, jwt_audience=AUDIENCE))
    assert made is not None
    assert not made._keys.are_fresh
    assert make_json_web_tokens(AuthenticationSettings()) is None
