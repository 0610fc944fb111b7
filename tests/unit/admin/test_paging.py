"""Lists of the admin API by pages: the same rules for each of them."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Any

import pytest

from control_plane.admin.wire import CONTINUE
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.domain.tenant import Tenant
from tests.aio import run
from tests.unit.admin.admin_bench import Bench
from tests.unit.admin.declared.declared_fields import LEAST_OF

KINDS = list(LEAST_OF)


def pages(bench: Bench, path: str) -> list[Any]:
    """Follow the links from the first page to the last."""
    found, seen = [], set()
    following = path
    while following:
        response = bench.response("GET", following)
        assert response.status_code == 200, response.text
        found.append(response.json())
        token = response.headers.get(CONTINUE)
        assert token not in seen
        seen.add(token)
        following = response.links["next"]["url"] if token else ""
        assert (token is None) is ("link" not in response.headers)
        assert token is None or f"continue={token}" in following
    return found


def put_tenants(bench: Bench, *names: str) -> None:
    for name in names:
        run(bench.store.put(Kind.TENANT, name, to_body(Tenant(name))))


def names(page: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in page]


@pytest.mark.parametrize("path", ["/tenants", "/objects/Tenant"])
def test_each_object_is_in_exactly_one_page(bench: Bench, path: str) -> None:
    put_tenants(bench, *"edcba")
    assert [names(page) for page in pages(bench, f"{path}?limit=2")] == [["a", "b"], ["c", "d"], ["e"]]
    assert [names(page) for page in pages(bench, f"{path}?limit=5")] == [["a", "b", "c", "d", "e"]]
    assert [names(page) for page in pages(bench, path)] == [["a", "b", "c", "d", "e"]]


def test_what_comes_and_goes_between_pages_moves_nothing_else(bench: Bench) -> None:
    put_tenants(bench, *"bdf")
    first = bench.response("GET", "/tenants?limit=2")
    put_tenants(bench, "a", "c", "e")
    run(bench.store.delete(Kind.TENANT, "d"))  # the one that the first page ended with
    assert names(first.json()) == ["b", "d"]
    assert [names(page) for page in pages(bench, first.links["next"]["url"])] == [["e", "f"]]


def test_keys_models_and_declared_kinds(bench: Bench) -> None:
    bench.make_key()
    bench.make_key()
    ids = [each["id"] for page in pages(bench, "/keys?limit=1") for each in page]
    assert ids == sorted(ids)
    assert len(ids) == 2
    assert [names(page) for page in pages(bench, "/models?limit=1")] == [["a"], ["b"]]
    for kind in KINDS:
        for name in ("x", "y"):
            assert bench.ask("PATCH", f"/objects/{kind}/{name}", body=LEAST_OF[kind])[0] == 200
        assert [page[-1]["name"] for page in pages(bench, f"/objects/{kind}?limit=1")][-1] == "y"


def test_the_audit_log_with_tokens_and_with_numbers(bench: Bench) -> None:
    for name in "abc":
        assert bench.ask("PUT", f"/tenants/{name}", body={})[0] == 200
    found = pages(bench, "/audit?limit=2")
    assert [[entry["number"] for entry in page["entries"]] for page in found] == [[1, 2], [3]]
    assert [entry["number"] for entry in bench.ask("GET", "/audit?after=1&limit=1")[1]["entries"]] == [2]


ELSEWHERE = urlsafe_b64encode(b'["/elsewhere","a"]').decode()
NOTHINGS = [
    "x",
    "%00",
    "====",
    "9" * 4097,
    ELSEWHERE,
    *(urlsafe_b64encode(each).decode() for each in (b"[" * 2000, b"{}")),
]


@pytest.mark.parametrize(
    ("path", "token"),
    [
        *(("/keys", token) for token in NOTHINGS),
        *((path, ELSEWHERE) for path in ("/tenants", "/models", "/rollouts", "/audit", "/usage", "/objects/Route")),
    ],
    ids=lambda value: value[:12],
)
def test_a_token_of_nothing_is_refused(bench: Bench, path: str, token: str) -> None:
    status, refused = bench.ask("GET", f"{path}?limit=1&continue={token}")
    assert (status, refused["code"]) == (400, "invalid_argument")


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/tenants", b"7"),
        ("/tenants", b'["a"]'),
        ("/tenants", b'{"a":1}'),
        ("/audit", b'"a"'),
        ("/audit", b"true"),
        ("/usage", b'"a"'),
        ("/usage", b'["2026-01-01",1,"a"]'),
    ],
)
def test_a_key_of_another_kind_is_refused(bench: Bench, path: str, key: bytes) -> None:
    put_tenants(bench, "a")
    token = urlsafe_b64encode(b'["%b",%b]' % (path.encode(), key)).decode()
    status, refused = bench.ask("GET", f"{path}?limit=1&continue={token}")
    assert (status, refused.get("code")) == (400, "invalid_argument")


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "1e9"])
@pytest.mark.parametrize("path", ["/keys", "/usage", "/audit", "/models"])
def test_how_many_at_most(bench: Bench, path: str, limit: str) -> None:
    assert bench.ask("GET", f"{path}?limit={limit}")[0] == 400
