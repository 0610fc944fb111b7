"""The secrets of webhooks over the admin API: shown once, in no log, and no more of a tenant than a change needs."""

from __future__ import annotations

from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier

from control_plane.core.scope import Right, Scope
from control_plane.jobs.webhooks.secrets import MAX_OF_TENANT
from control_plane.objects.domain.validation import WEBHOOK_SECRET
from tests.aio import run
from tests.unit.admin.admin_bench import Bench


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.put_tenant()
    return bench


def make(bench: Bench, tenant: str = "acme") -> dict[str, Any]:
    status, body = bench.ask("POST", "/webhook-secrets", body={"tenant": tenant})
    assert status == 201
    made: dict[str, Any] = body
    return made


def test_a_secret_is_shown_once_and_signs_from_then_on(bench: Bench) -> None:
    made = make(bench)
    assert WEBHOOK_SECRET.fullmatch(made["secret"])
    Verifier(made["secret"])
    run(bench.known.start())
    assert bench.known.webhook_secrets_of("acme") == [made["secret"]]
    shown = [bench.ask("GET", path)[1] for path in ("/webhook-secrets", "/audit", "/objects/Tenant")]
    assert shown[0] == [{"id": made["id"], "tenant": "acme", "created_s": made["created_s"]}]
    assert [(each["action"], each["kind"], each["name"]) for each in (entry["change"] for entry in shown[1]["entries"])] == [
        ("create", "webhook_secret", made["id"])
    ]
    assert made["secret"] not in str(shown)
    assert made["secret"].removeprefix("whsec_")[:20] not in str(shown)


def test_the_newest_is_first_and_a_deleted_one_signs_no_more(bench: Bench) -> None:
    old = make(bench)
    bench.clock.now_s += 1
    new = make(bench)
    run(bench.known.start())
    assert bench.known.webhook_secrets_of("acme") == [new["secret"], old["secret"]]
    assert bench.ask("DELETE", f"/webhook-secrets/{old['id']}")[0] == 204
    run(bench.known.start())
    assert bench.known.webhook_secrets_of("acme") == [new["secret"]]
    assert bench.ask("DELETE", f"/webhook-secrets/{old['id']}")[0] == 404


def test_a_tenant_has_a_few_and_one_that_does_not_exist_none(bench: Bench) -> None:
    for _ in range(MAX_OF_TENANT):
        make(bench)
    status, body = bench.ask("POST", "/webhook-secrets", body={"tenant": "acme"})
    assert (status, body["code"]) == (409, "conflict")
    assert bench.ask("POST", "/webhook-secrets", body={"tenant": "nobody"})[0] == 400
    assert bench.ask("POST", "/webhook-secrets", body={"tenant": "../x"})[0] == 400
    assert make(bench, tenant="")["tenant"] == "", "of callers without a key"


def test_sent_again_it_is_the_same_secret(bench: Bench) -> None:
    key = "a-key-that-nobody-guesses"
    first, again = (bench.ask("POST", "/webhook-secrets", body={"tenant": "acme"}, idempotency_key=key)[1] for _ in range(2))
    assert first == again
    assert len(bench.ask("GET", "/webhook-secrets")[1]) == 1


def test_administrators_alone_make_and_delete_them() -> None:
    bench = Bench(authentication=True)
    keys = {right: bench.make_key(Scope(right)) for right in (Right.ADMIN, Right.OPERATOR, Right.VIEWER)}
    found = {
        right: bench.ask("POST", "/webhook-secrets", body={"tenant": "acme"}, authorization=f"Bearer {key}")[0]
        for right, key in keys.items()
    }
    assert found == {Right.ADMIN: 201, Right.OPERATOR: 403, Right.VIEWER: 403}
    assert bench.ask("GET", "/webhook-secrets", authorization=f"Bearer {keys[Right.VIEWER]}")[0] == 200
