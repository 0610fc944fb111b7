from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm

from control_plane.auth.adapters.jwks import UnusableKeys, read_keys
from tests.unit.auth.adapters.jwks_issuer import key_set, private_key, public_jwk

GOOD = public_jwk("ES256")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("jwk", "name"),
    [
        pytest.param(public_jwk("RS256"), ("RS256-0", "RS256"), id="RSA"),
        pytest.param(public_jwk("ES256"), ("ES256-0", "ES256"), id="P-256"),
        pytest.param(public_jwk("EdDSA"), ("EdDSA-0", "EdDSA"), id="Ed25519"),
        pytest.param(public_jwk("ES256", use=None), ("ES256-0", "ES256"), id="without a use"),
        pytest.param(public_jwk("ES256", key_ops=None, alg="ES256"), ("ES256-0", "ES256"), id="with its algorithm"),
        pytest.param(public_jwk("ES256", x5c=["..."], extra=7), ("ES256-0", "ES256"), id="with what we need not know"),
        pytest.param(public_jwk("ES256", kid=None), None, id="without an id"),
        pytest.param(public_jwk("ES256", kid=7), None, id="an id that is no text"),
        pytest.param(public_jwk("ES256", use="enc"), None, id="for encryption"),
        pytest.param(public_jwk("ES256", key_ops=["sign"]), None, id="not for verifying"),
        pytest.param(public_jwk("ES256", key_ops="verify"), None, id="operations that are no list"),
        pytest.param(public_jwk("RS256", alg="RS512"), None, id="another RSA algorithm"),
        pytest.param(public_jwk("RS256", alg="PS256"), None, id="RSA-PSS"),
        pytest.param(public_jwk("RS256", alg="HS256"), None, id="an algorithm that does not fit the key"),
        pytest.param(public_jwk("weak"), None, id="RSA with 1024 bits"),
        pytest.param(public_jwk("ES384"), None, id="another curve"),
        pytest.param(public_jwk("ES256", crv="P-384"), None, id="a curve that is not its own"),
        pytest.param(public_jwk("EdDSA", crv="X25519"), None, id="a curve for encryption"),
        pytest.param(public_jwk("ES256", x="AAAA"), None, id="no point"),
        pytest.param(public_jwk("ES256", y="A" * 43), None, id="a point beside the curve"),
        pytest.param(public_jwk("ES256", x=7), None, id="a number for a text"),
        pytest.param(public_jwk("RS256", n="!!"), None, id="no base64"),
        pytest.param(public_jwk("RS256", e=None), None, id="half a key"),
        pytest.param(public_jwk("RS256", kty=["RSA"]), None, id="a type that is no text"),
        pytest.param({"kty": "oct", "kid": "k", "k": "c2VjcmV0"}, None, id="a shared secret"),
        pytest.param({"kid": "k"}, None, id="nothing"),
        pytest.param("RS256", None, id="no object"),
        pytest.param(public_jwk("EdDSA", d="AAAA"), None, id="a private key that was published"),
    ],
)
def test_which_keys_count(jwk: Any, name: tuple[str, str] | None) -> None:
    other = public_jwk("EdDSA", kid="other")
    assert set(read_keys(key_set(jwk, other))) == {("other", "EdDSA")} | ({name} if name else set())


def test_keys_of_different_types_may_have_one_id() -> None:
    assert set(read_keys(key_set(public_jwk("RS256", kid="k"), public_jwk("ES256", kid="k")))) == {("k", "RS256"), ("k", "ES256")}


def test_a_private_key_is_not_read_even_whole() -> None:
    whole = ECAlgorithm.to_jwk(private_key("ES256"), as_dict=True)
    assert whole["d"]
    with pytest.raises(UnusableKeys, match="no key"):
        read_keys(key_set({**whole, "kid": "k"}))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "no JSON Web Key Set"),
        (b"{}", "no JSON Web Key Set"),
        (b'{"keys": {}}', "no JSON Web Key Set"),
        (b'{"keys": []}', "no key for ES256, EdDSA, RS256 that has an id"),
        (key_set(public_jwk("ES384")), "no key for"),
        (key_set(*({"kty": "oct"},) * 100, GOOD), "no key for"),
    ],
    ids=["empty", "a page", "deep", "no text", "a list", "an object", "keys no list", "no keys", "none of ours", "beyond a hundred"],
)
def test_what_is_no_key_set(body: bytes, says: str) -> None:
    with pytest.raises(UnusableKeys, match=says):
        read_keys(body)


@given(st.lists(JSON | st.builds(lambda name, value: {**GOOD, name: value}, st.sampled_from(sorted(GOOD)), JSON), max_size=4))
def test_whatever_is_published_the_good_key_is_read(published: list[Any]) -> None:
    keys = read_keys(json.dumps({"keys": [*published, {**GOOD, "kid": "good"}]}).encode())
    assert ("good", "ES256") in keys
