"""No secret is in the audit log, of whatever kind of object."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.audit.domain.entry import Actor
from control_plane.audit.domain.redaction import NOT_SHOWN, redacted, redacted_text
from control_plane.audit.trail import AuditTrail
from control_plane.core.scope import EVERYTHING
from control_plane.objects.audited_store import AuditedStore
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from tests.aio import run
from tests.fakes.stores.audit_log import FakeAuditLog
from tests.fakes.stores.state_store import FakeStateStore

SECRETS = st.from_regex(r"[A-Za-z0-9_-]{43}", fullmatch=True)
DIGESTS = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
NAMES = st.sampled_from(("secret", "secret_sha256", "password", "client_secret", "api_token", "credentials", "private_key_pem"))


def written(kind: Kind, body: dict[str, Any], reason: str = "") -> str:
    """What the log has after an object of that kind was made, replaced and deleted."""
    log = FakeAuditLog()
    store = AuditedStore(FakeStateStore(), AuditTrail(log), Actor("me", reason))

    async def live() -> None:
        await store.put(kind, "x", body)
        await store.put(kind, "x", {**body, "more": 1})
        await store.delete(kind, "x")

    run(live())
    return orjson.dumps(log.entries).decode()


@settings(max_examples=50)
@given(kind=st.sampled_from(Kind), secret=SECRETS, digest=DIGESTS, field=NAMES, depth=st.integers(0, 2))
def test_whatever_kind_it_is(kind: Kind, secret: str, digest: str, field: str, depth: int) -> None:
    text = f"tg_0123456789ab_{secret}"
    body: dict[str, Any] = {field: digest, "description": f"for {text}!", "urls": [f"redis://me:{secret}@host:1/0", {"note": text}]}
    for _ in range(depth):
        body = {"inner": body, "list": [body]}
    found = written(kind, body, reason=f"since {text} leaked")
    assert not [each for each in (secret, digest) if each in found]
    assert kind is Kind.APPLIED or found.count('"action"') == 3


def test_a_key_is_shown_without_what_it_is_found_by() -> None:
    key = ApiKey("0123456789ab", "acme", EVERYTHING.scopes, "f" * 64, created_s=1.0, description="of ours")
    shown = redacted(to_body(key))
    assert shown == {**to_body(key), "secret_sha256": NOT_SHOWN}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("tg_0123456789ab_" + "s" * 43, "tg_0123456789ab_" + NOT_SHOWN),
        ("a eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.c2ln b", f"a {NOT_SHOWN} b"),
        ("https://u:p@host/x", f"https://{NOT_SHOWN}host/x"),
        ("redis://me:p/w@x@host:1/0 b", f"redis://{NOT_SHOWN}host:1/0 b"),
        ("https://host:8080/x b@c", "https://host:8080/x b@c"),
        ("http://a:1,http://u:p@b", f"http://a:1,http://{NOT_SHOWN}b"),
        ("https://host/x", "https://host/x"),
    ],
)
def test_by_form(text: str, shown: str) -> None:
    assert redacted_text(text) == shown
