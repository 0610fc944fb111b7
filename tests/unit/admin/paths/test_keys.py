from __future__ import annotations

import json
import time
from typing import Any

import pytest

from control_plane.objects.domain.stored import Kind
from tests.aio import run
from tests.unit.admin.admin_bench import Bench

SPEC = {"tenant": "acme", "scopes": ["infer:text_*", "metrics"]}
HASHED = "secret_sha256"


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.put_tenant()
    bench.clock.now_s = time.time()
    return bench


def make(bench: Bench, **more: object) -> dict[str, Any]:
    status, body = bench.ask("POST", "/keys", body=SPEC | more)
    assert status == 201
    made: dict[str, Any] = body
    return made


def shown(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "text"}


class TestMaking:
    def test_what_is_told(self, bench: Bench) -> None:
        made = make(bench, description="ci", lifetime_s=3600)
        assert made["text"].startswith(f"tg_{made['id']}_")
        assert made.pop("expires_s") == pytest.approx(bench.clock.now_s + 3600, abs=60)
        assert shown(made) == {
            "id": made["id"],
            "tenant": "acme",
            "scopes": ["infer:text_*", "metrics"],
            "created_s": bench.clock.now_s,
            "revoked_s": None,
            "description": "ci",
        }

    def test_without_a_lifetime_it_is_for_ever(self, bench: Bench) -> None:
        assert make(bench)["expires_s"] is None

    @pytest.mark.parametrize(
        ("change", "where"),
        [
            ({"tenant": "nobody"}, "no tenant 'nobody'"),
            ({"tenant": ""}, "body.tenant"),
            ({"tenant": "a b"}, "body.tenant"),
            ({"tenant": None}, "body.tenant"),
            ({"scopes": []}, "body.scopes"),
            ({"scopes": ["infer"]}, "body.scopes.0: must be infer:GLOB (such as infer:text_*), repository, events, metrics"),
            ({"scopes": ["admin", "infer:"]}, "body.scopes.1"),
            ({"scopes": ["admin:x"]}, "body.scopes.0"),
            ({"scopes": ["infer:*\n"]}, "body.scopes.0"),
            ({"scopes": "admin"}, "body.scopes"),
            ({"scopes": ["admin"] * 101}, "body.scopes"),
            ({"lifetime_s": 0}, "body.lifetime_s"),
            ({"lifetime_s": "3600"}, "body.lifetime_s"),
            ({"lifetime_s": True}, "body.lifetime_s"),
            ({"lifetime_s": 1e300}, "body.lifetime_s"),
            ({"description": "x" * 1001}, "body.description"),
            ({"description": "\ud800"}, "body.description"),
            ({"expires_s": 1}, "body.expires_s: is not known here; look for a misspelt name"),
            ({"\ud800": 1}, "body: "),
        ],
    )
    def test_what_is_refused(self, bench: Bench, change: dict[str, object], where: str) -> None:
        sent = json.dumps(SPEC | change).encode()
        status, body = bench.ask("POST", "/keys", body=sent, content_type="application/json")
        assert (status, body["code"]) == (400, "invalid_argument")
        assert where in body["error"]
        assert bench.ask("GET", "/keys") == (200, [])

    @pytest.mark.parametrize(
        "sent",
        [
            b"",
            b"null",
            b"[]",
            b"{",
            b"\xff",
            b"[" * 100_000,
            b'{"lifetime_s": NaN, "tenant": "acme", "scopes": ["admin"]}',
            b'{"lifetime_s": 1e400, "tenant": "acme", "scopes": ["admin"]}',
            b'{"lifetime_s": 1' + b"0" * 5000 + b', "tenant": "acme", "scopes": ["admin"]}',
        ],
    )
    def test_what_is_no_specification(self, bench: Bench, sent: bytes) -> None:
        status, body = bench.ask("POST", "/keys", body=sent, content_type="application/json")
        assert (status, body["code"]) == (400, "invalid_argument")

    def test_a_body_that_is_not_said_to_be_json(self, bench: Bench) -> None:
        sent = json.dumps(SPEC).encode()
        status, body = bench.ask("POST", "/keys", body=sent, content_type="application/x-www-form-urlencoded")
        assert (status, body["error"]) == (400, "body: must be a JSON object, sent with `content-type: application/json`")

    def test_a_refusal_does_not_repeat_megabytes(self, bench: Bench) -> None:
        response = bench.response("POST", "/keys", body=SPEC | {"x" * 200_000: 1})
        assert response.status_code == 400
        assert len(response.content) < 1000


class TestListing:
    def test_by_id_with_nothing_that_lets_one_in(self, bench: Bench) -> None:
        made = [make(bench), make(bench)]
        response = bench.response("GET", "/keys")
        assert response.json() == sorted(map(shown, made), key=lambda key: key["id"])
        secrets = [body["text"].split("_", 2)[2] for body in made]
        hashes = [str((stored.body or {})[HASHED]) for stored in run(bench.store.list_all(Kind.API_KEY))]
        assert len(hashes) == 2
        assert not [secret for secret in (*secrets, *hashes, HASHED) if secret in response.text]


class TestRotation:
    def test_a_new_one_beside_the_old_one(self, bench: Bench) -> None:
        old = make(bench, description="ci")
        status, new = bench.ask("POST", f"/keys/{old['id']}/rotate", body={"overlap_s": 60})
        assert status == 201
        assert new["text"].startswith(f"tg_{new['id']}_")
        assert new["id"] != old["id"]
        assert [new[name] for name in ("tenant", "scopes", "description")] == [old[name] for name in ("tenant", "scopes", "description")]
        revoked_s = {key["id"]: key["revoked_s"] for key in bench.ask("GET", "/keys")[1]}
        assert revoked_s == {old["id"]: bench.clock.now_s + 60, new["id"]: None}

    @pytest.mark.parametrize("body", [None, {}])
    def test_the_overlap_is_a_day_where_none_is_given(self, bench: Bench, body: object) -> None:
        old = make(bench)
        assert bench.ask("POST", f"/keys/{old['id']}/rotate", body=body)[0] == 201
        revoked_s = {key["id"]: key["revoked_s"] for key in bench.ask("GET", "/keys")[1]}
        assert revoked_s[old["id"]] == bench.clock.now_s + 86_400

    @pytest.mark.parametrize("body", [{"overlap_s": -1}, {"overlap_s": "1"}, {"overlap": 1}, []])
    def test_what_is_refused(self, bench: Bench, body: object) -> None:
        old = make(bench)
        assert bench.ask("POST", f"/keys/{old['id']}/rotate", body=body)[0] == 400
        assert len(bench.ask("GET", "/keys")[1]) == 1

    def test_one_that_is_revoked_has_no_successor(self, bench: Bench) -> None:
        old = make(bench)
        bench.ask("DELETE", f"/keys/{old['id']}")
        status, body = bench.ask("POST", f"/keys/{old['id']}/rotate")
        assert (status, body["code"]) == (409, "conflict")


class TestRevocation:
    def test_is_answered_with_the_key_and_may_be_repeated(self, bench: Bench) -> None:
        made = make(bench)
        revoked = shown(made) | {"revoked_s": bench.clock.now_s}
        assert bench.ask("DELETE", f"/keys/{made['id']}") == (200, revoked)
        bench.clock.now_s += 10
        assert bench.ask("DELETE", f"/keys/{made['id']}") == (200, revoked)

    def test_holds_at_once(self) -> None:
        bench = Bench(authentication=True)
        first, second = bench.make_key(), bench.make_key()
        assert bench.ask("DELETE", f"/keys/{first.split('_')[1]}", authorization=f"Bearer {second}")[0] == 200
        run(bench.known.start())
        assert bench.ask("GET", "/keys", authorization=f"Bearer {first}")[0] == 401
        assert bench.ask("GET", "/keys", authorization=f"Bearer {second}")[0] == 200


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/keys/{}"), ("POST", "/keys/{}/rotate")])
@pytest.mark.parametrize(
    ("id", "status", "code"),
    [("0123456789ab", 404, "object_not_found"), ("0123456789AB", 400, "invalid_argument"), ("x", 400, "invalid_argument")],
)
def test_a_key_that_is_not_there(bench: Bench, method: str, path: str, id: str, status: int, code: str) -> None:  # noqa: A002
    found, body = bench.ask(method, path.format(id))
    assert (found, body["code"]) == (status, code)
