"""`tidegate keys | tenants | cache` against the admin API on a real port."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from control_plane.app.stores import open_state_store
from control_plane.auth.authentication import _KEY_TEXT
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import Objects
from tests.aio import run
from tests.unit.admin.admin_bench import Bench
from tests.unit.cli.command import Tidegate


class TestKeys:
    def test_from_making_to_revoking(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        made = tidegate("keys", "create", "--tenant", "acme", "--scope", "infer:*", "--scope", "metrics", "--expires", "90d", *where)
        text = made.out.removesuffix("\n")
        match = _KEY_TEXT.fullmatch(text)
        assert match is not None, made
        assert made.err == f"key {match[1]} of tenant acme; the following is shown only once\n"

        rotated = tidegate("keys", "rotate", match[1], "--overlap", "1h", *where)
        new = _KEY_TEXT.fullmatch(rotated.out.removesuffix("\n"))
        assert new is not None, rotated
        assert rotated.err == f"key {new[1]} replaces {match[1]}, which is valid for another 1h; the following is shown only once\n"

        assert tidegate("keys", "revoke", match[1], *where) == (0, "", f"key {match[1]} is revoked\n")
        listed = tidegate("keys", "list", *where)
        lines = {line.split()[0]: line for line in listed.out.splitlines()}
        assert re.search(r"acme +infer:\* metrics +revoked ", lines[match[1]])
        assert re.search(r"acme +infer:\* metrics +valid ", lines[new[1]])
        assert not [secret for secret in (match[2], new[2]) if secret in listed.out + listed.err]

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("create", "--tenant", "nobody", "--scope", "admin"), "no tenant 'nobody'"),
            (("create", "--tenant", "acme", "--scope", "everything"), "error: scopes.0: "),
            (("create", "--tenant", "acme", "--scope", "admin", "--expires", "soon"), "duration 'soon'"),
            (("create", "--tenant", "acme", "--scope", "admin", "--state-url", "redis://h"), "--state-url is for use with --offline"),
            (("create", "--tenant", "acme", "--scope", "admin", "--offline"), "--admin-url without it"),
            (("revoke", "0123456789ab"), "no api key '0123456789ab'"),
            (("rotate", "[red]"), "error: id: "),
        ],
    )
    def test_a_refusal_is_one_line_and_no_key(
        self, tidegate: Tidegate, where: tuple[str, str], arguments: tuple[str, ...], said: str
    ) -> None:
        ended = tidegate("keys", *arguments, *where)
        assert (ended.status, ended.out) == (1, "")
        assert ended.err.startswith("error: ")
        assert said in ended.err
        assert ended.err.count("\n") == 1

    @pytest.mark.parametrize("key", ["", "tg_wrong"])
    def test_without_a_valid_key_it_says_where_to_put_one(
        self, tidegate: Tidegate, where: tuple[str, str], monkeypatch: pytest.MonkeyPatch, key: str
    ) -> None:
        monkeypatch.setenv("TIDEGATE_API_KEY", key)
        ended = tidegate("keys", "list", *where)
        assert (ended.status, ended.out) == (1, "")
        assert ended.err.endswith("(HTTP 401); commands send the key in TIDEGATE_API_KEY\n")

    def test_models_are_listed_with_the_key_too(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        assert "READY" in tidegate("models", "list", *where).out


class TestOffline:
    """The first key is made without a running tidegate."""

    def test_its_text_alone_is_printed(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "control_plane", "keys", "create", "--tenant", "ops", "--scope", "admin", "--offline"]
        ended = subprocess.run([*command, "--state-dir", tmp_path / "new"], capture_output=True, text=True, timeout=200, check=True)
        match = _KEY_TEXT.fullmatch(ended.stdout.removesuffix("\n"))
        assert match is not None
        assert ended.stderr == f"key {match[1]} of tenant ops, stored in {tmp_path / 'new'}; the following is shown only once\n"
        assert self.held(tmp_path / "new") == ([Tenant("ops")], [match[1]])

    def test_a_tenant_that_is_there_stays_as_it_is(self, tidegate: Tidegate, tmp_path: Path) -> None:
        tenant = Tenant("ops", concurrency=3)

        async def fill() -> None:
            store = await open_state_store(None, tmp_path)
            await Objects(store).put(tenant)
            await store.close()

        run(fill())
        arguments = ("keys", "create", "--tenant", "ops", "--scope", "infer:*", "--expires", "1d", "--offline", "--state-dir", tmp_path)
        keys = sorted(tidegate(*arguments).out.split("_")[1] for _ in range(2))
        assert self.held(tmp_path) == ([tenant], keys)

    @pytest.mark.parametrize(("tenant", "scope", "said"), [("a b", "admin", "name must be"), ("ops", "root", "scope 'root'")])
    def test_a_refusal(self, tidegate: Tidegate, tmp_path: Path, tenant: str, scope: str, said: str) -> None:
        ended = tidegate("keys", "create", "--tenant", tenant, "--scope", scope, "--offline", "--state-dir", tmp_path)
        assert (ended.status, ended.out) == (1, "")
        assert said in ended.err

    @staticmethod
    def held(state_dir: Path) -> tuple[list[Tenant], list[str]]:
        async def read() -> tuple[list[Tenant], list[str]]:
            store = await open_state_store(None, state_dir)
            tenants = [held.value for held in await Objects(store).list_all(Tenant)]
            keys = [stored.name for stored in await store.list_all(Kind.API_KEY)]
            await store.close()
            return tenants, keys

        return run(read())


class TestTenants:
    def test_from_making_to_deleting(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        limits = ("--requests-per-s", "0.5", "--burst", 2, "--concurrency", 3, "--daily-compute-units", 86_400_000, "--weight", 2.5)
        shown = ["t", "0.5", "2", "3", "86400000", "2.5", "-1", "any"]
        made = tidegate("tenants", "set", "t", *limits, "--priority", -1, *where)
        assert (made.table[1:], made.err) == ([shown], "tenant t is new\n")
        assert shown in tidegate("tenants", "list", *where).table
        assert tidegate("tenants", "delete", "t", *where) == (0, "", "tenant t is deleted\n")
        assert "t" not in [line[0] for line in tidegate("tenants", "list", *where).table]

    def test_what_no_option_names_stays_as_it_is(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        tidegate("tenants", "set", "t", "--requests-per-s", 5, "--burst", 20, "--weight", 2, *where)
        changed = tidegate("tenants", "set", "t", "--burst", 7, "--priority", 3, *where)
        assert changed.table[1:] == [["t", "5", "7", "2", "3", "any"]]
        assert changed.err == "tenant t: burst 20 -> 7\ntenant t: priority 0 -> 3\n"
        taken = tidegate("tenants", "set", "t", "--requests-per-s", "none", *where)
        assert (taken.table[1:], taken.err) == ([["t", "7", "2", "3", "any"]], "tenant t: requests_per_s 5 -> none\n")
        for same in ((), ("--burst", 7)):
            assert tidegate("tenants", "set", "t", *same, *where).err == "tenant t is as it was\n"
        replaced = tidegate("tenants", "set", "t", "--replace", "--concurrency", 4, *where)
        assert replaced.table[1:] == [["t", "4", "1", "0", "any"]]
        assert replaced.err.count("\n") == 4
        tidegate("tenants", "delete", "t", *where)

    @pytest.mark.parametrize(
        ("option", "value"), [("--burst", "many"), ("--weight", "none"), ("--requests-per-s", "inf"), ("--weight", "nan")]
    )
    def test_what_is_no_number_is_wrong_usage(self, tidegate: Tidegate, where: tuple[str, str], option: str, value: str) -> None:
        ended = tidegate("tenants", "set", "t", option, value, *where)
        assert (ended.status, ended.out, option in ended.err, value in ended.err) == (2, "", True, True)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("set", "t", "--weight", "0"), "error: weight: "),
            (("set", "a b"), "error: name: "),
            (("set", "../keys"), "is no name: a name is 1-255 letters"),
            (("delete", "nobody"), "no tenant 'nobody'"),
            (("delete", "acme"), "has keys that are valid"),
        ],
    )
    def test_a_refusal_is_one_line(self, tidegate: Tidegate, where: tuple[str, str], arguments: tuple[str, ...], said: str) -> None:
        ended = tidegate("tenants", *arguments, *where)
        assert (ended.status, ended.out) == (1, "")
        assert said in ended.err
        assert ended.err.count("\n") == 1

    def test_nobody_there(self, tidegate: Tidegate) -> None:
        ended = tidegate("tenants", "list", "--admin-url", "http://127.0.0.1:1")
        assert ended.status == 1
        assert "is `tidegate serve` running there?" in ended.err


class TestCache:
    def test_purges(self, tidegate: Tidegate, where: tuple[str, str], bench: Bench) -> None:
        said = "cached responses of a and of ensembles that use it are purged\n"
        assert tidegate("cache", "purge", "a", *where) == (0, "", said)
        assert tidegate("cache", "purge", "--all", *where) == (0, "", "cached responses of every model are purged\n")
        assert {name for kind, name in bench.store.state.objects if kind is Kind.PURGE} == {"a", "*"}

    def test_a_routes_name_is_its_models_and_one_that_is_not_loaded_is_told(
        self, tidegate: Tidegate, where: tuple[str, str], bench: Bench
    ) -> None:
        tidegate("routes", "set", "by-route", "--model", "b", *where)
        run(bench.known.start())
        ended = tidegate("cache", "purge", "by-route", *where)
        tidegate("routes", "delete", "by-route", *where)
        assert (ended.status, ended.err.splitlines()) == (
            0,
            ["cached responses of b, which is behind route by-route, and of ensembles that use it are purged", "model b is not loaded"],
        )
        assert (Kind.PURGE, "b") in bench.store.state.objects

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ((), "give either the model whose cached responses to purge, or --all"),
            (("a", "--all"), "give either the model whose cached responses to purge, or --all"),
            (("a/b",), "not a model's name"),
        ],
    )
    def test_a_refusal_is_one_line(self, tidegate: Tidegate, where: tuple[str, str], arguments: tuple[str, ...], said: str) -> None:
        ended = tidegate("cache", "purge", *arguments, *where)
        assert (ended.status, ended.out) == (1, "")
        assert said in ended.err
        assert ended.err.count("\n") == 1
