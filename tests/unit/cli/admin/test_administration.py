"""`tidegate keys | tenants | routes | prices | usage` against the admin API on a real port."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from control_plane.app.stores import open_state_store
from control_plane.auth.authentication import _KEY_TEXT
from control_plane.cli import main
from control_plane.metering.domain.usage import Usage, UsageKey
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import Objects
from tests.aio import run
from tests.unit.admin.admin_bench import Bench, Clock
from tests.wire.admin import admin_server


class OutcomeCount(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def table(self) -> list[list[str]]:
        """Split the output of a table into cells; no cell of it is empty or contains a space."""
        return [line.split() for line in self.out.splitlines()]


Tidegate = Callable[..., OutcomeCount]


@pytest.fixture
def tidegate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tidegate:
    """Run the whole command line in this process."""

    def call(*arguments: object) -> OutcomeCount:
        monkeypatch.setattr(sys, "argv", ["tidegate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return OutcomeCount(int(ended.value.code or 0), told.out, told.err)

    return call


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(authentication=True, clock=Clock(time.time()))


@pytest.fixture(scope="module")
def url(bench: Bench) -> Iterator[tuple[str, str]]:
    key = bench.make_key()
    with admin_server(bench) as found:
        yield found, key


@pytest.fixture(autouse=True)
def where(monkeypatch: pytest.MonkeyPatch, url: tuple[str, str]) -> tuple[str, str]:
    monkeypatch.setenv("TIDEGATE_API_KEY", url[1])
    return "--admin-url", url[0]


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
        assert f"key {match[1]} of tenant ops" in ended.stderr
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
        shown = ["t", "0.5", "2", "3", "86400000", "2.5", "-1"]
        made = tidegate("tenants", "set", "t", *limits, "--priority", -1, *where)
        assert (made.table[1:], made.err) == ([shown], "tenant t is new\n")
        assert shown in tidegate("tenants", "list", *where).table
        assert tidegate("tenants", "delete", "t", *where) == (0, "", "tenant t is deleted\n")
        assert "t" not in [line[0] for line in tidegate("tenants", "list", *where).table]

    def test_what_no_option_names_stays_as_it_is(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        tidegate("tenants", "set", "t", "--requests-per-s", 5, "--burst", 20, "--weight", 2, *where)
        changed = tidegate("tenants", "set", "t", "--burst", 7, "--priority", 3, *where)
        assert changed.table[1:] == [["t", "5", "7", "2", "3"]]
        assert changed.err == "tenant t: burst 20 -> 7\ntenant t: priority 0 -> 3\n"
        taken = tidegate("tenants", "set", "t", "--requests-per-s", "none", *where)
        assert (taken.table[1:], taken.err) == ([["t", "7", "2", "3"]], "tenant t: requests_per_s 5 -> none\n")
        for same in ((), ("--burst", 7)):
            assert tidegate("tenants", "set", "t", *same, *where).err == "tenant t is as it was\n"
        replaced = tidegate("tenants", "set", "t", "--replace", "--concurrency", 4, *where)
        assert replaced.table[1:] == [["t", "4", "1", "0"]]
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
            (("set", "../keys"), "(HTTP 40"),
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


class TestRoutes:
    def test_targets_are_given_in_percent(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        more = ("--target", "n:7=5", "--target", "o=0.25%", "--sticky", "header:x-user", "--repeatable")
        shown = ["r", "m", *["n:7", "5", "%,", "o", "0.25", "%,", "by", "header:x-user"], "everybody", "model"]
        assert tidegate("routes", "set", "r", "--model", "m", *more, *where).table[1:] == [shown]
        assert tidegate("routes", "set", "r", "--target", "none", "--sticky", "none", *where).table[1:] == [
            ["r", "m", "everybody", "model"]
        ]
        tidegate("routes", "delete", "r", *where)

    @pytest.mark.parametrize("target", ["n", "n=many", "n=101", "m=5", "n=-1"])
    def test_what_is_no_target(self, tidegate: Tidegate, where: tuple[str, str], target: str) -> None:
        ended = tidegate("routes", "set", "r", "--model", "m", "--target", target, *where)
        assert (ended.status != 0, ended.out) == (True, "")

    @pytest.mark.parametrize("target", ["n", "n=many", "n=101", "n=nan"])
    def test_a_wrong_target_is_shown_whole_with_what_is_right(self, tidegate: Tidegate, where: tuple[str, str], target: str) -> None:
        told = " ".join(tidegate("routes", "set", "r", "--model", "m", "--target", target, *where).err.replace("│", " ").split())
        assert f"'{target}' is not a target as MODEL[:VERSION]=PERCENT, from 0 to 100" in told

    def test_from_making_to_deleting(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        more = ("--version", 3, "--deadline-ms", 1500, "--tenant", "acme", "--tenant", "b", "--pool", "short")
        shown = ["r", "a", "3", "1500", "acme,", "b", "model", "short"]
        assert tidegate("routes", "set", "r", "--model", "a", *more, *where).table[1:] == [shown]
        assert tidegate("routes", "list", *where).table[1:] == [shown]
        changed = tidegate("routes", "set", "r", "--model", "b", "--tenant", "none", "--pool", "none", *where)
        assert changed.table[1:] == [["r", "b", "3", "1500", "everybody", "model"]]
        assert changed.err == "route r: model a -> b\nroute r: tenants acme,b -> none\nroute r: pool short -> none\n"
        changed = tidegate("routes", "set", "r", "--cache-ttl", 60, "--version", "none", "--deadline-ms", "none", *where)
        assert changed.table[1:] == [["r", "b", "everybody", "model,", "60", "s"]]
        changed = tidegate("routes", "set", "r", "--cache", "on", *where)
        assert changed.table[1:] == [["r", "b", "everybody", "on,", "60", "s"]]
        assert changed.err == "route r: cache.is_on none -> yes\n"
        assert tidegate("routes", "set", "r", "--replace", "--model", "b", *where).table[1:] == [["r", "b", "everybody", "model"]]
        assert tidegate("routes", "delete", "r", *where) == (0, "", "route r is deleted\n")
        assert tidegate("routes", "list", *where).table[1:] == []

    def test_what_there_is_not_yet_is_warned_of(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        made = tidegate("routes", "set", "w", "--model", "soon", "--target", "a=5", "--tenant", "nobody", *where)
        assert (made.status, made.err.splitlines()) == (
            0,
            [
                "route w is new",
                "warning: there is no model 'soon' now; `tidegate models list` shows those there are",
                "warning: there is no tenant 'nobody' now; `tidegate tenants list` shows those there are",
            ],
        )
        assert tidegate("routes", "set", "w", "--model", "b", "--tenant", "none", *where).err.count("warning") == 0
        tidegate("routes", "delete", "w", *where)

    @pytest.mark.parametrize(
        ("options", "cell"),
        [
            ((), "model"),
            (("--cache", "on"), "on"),
            (("--cache", "off", "--cache-shared"), "off"),
            (("--cache", "on", "--cache-ttl", 0.5, "--cache-private", "--cache-min-cost", 12.5), "on, 0.5 s, private, from 12.5 units"),
            (("--cache-ttl", 86400, "--cache", "model"), "model, 86400 s"),
        ],
    )
    def test_how_answers_are_kept(self, tidegate: Tidegate, where: tuple[str, str], options: tuple[object, ...], cell: str) -> None:
        made = tidegate("routes", "set", "c", "--model", "m", *options, *where)
        assert made.table[1][3:] == cell.split()
        assert tidegate("routes", "list", *where).out == made.out
        tidegate("routes", "delete", "c", *where)

    @pytest.mark.parametrize("options", [("--cache", "yes"), ("--cache-ttl", 0), ("--cache-min-cost", -1), ("--cache-min-cost", "nan")])
    def test_how_they_cannot_be(self, tidegate: Tidegate, where: tuple[str, str], options: tuple[object, ...]) -> None:
        assert tidegate("routes", "set", "c", "--model", "m", *options, *where).status != 0

    @pytest.mark.parametrize(
        ("options", "cell"),
        [
            ((), ""),
            (("--hedging", "on"), "on"),
            (("--hedging", "off", "--twice-from-ms", 200), "off, twice from 200 ms"),
            (("--twice-from-ms", 1.5), "twice from 1.5 ms"),
            (("--hedging", "gateway", "--twice-from-ms", "none"), ""),
        ],
    )
    def test_what_goes_to_two_servers(self, tidegate: Tidegate, where: tuple[str, str], options: tuple[object, ...], cell: str) -> None:
        made = tidegate("routes", "set", "h", "--model", "m", "--hedging", "on", "--twice-from-ms", 50, *where)
        assert made.table[1][-4:] == ["twice", "from", "50", "ms"]
        made = tidegate("routes", "set", "h", "--replace", "--model", "m", *options, *where)
        assert made.table[1][4:] == cell.split()
        tidegate("routes", "delete", "h", *where)

    @pytest.mark.parametrize("option", ["--cache-ttl", "--cache-min-cost", "--deadline-ms", "--twice-from-ms"])
    @pytest.mark.parametrize("value", ["nan", "inf"])
    def test_what_is_no_finite_number_is_told(self, tidegate: Tidegate, where: tuple[str, str], option: str, value: str) -> None:
        ended = tidegate("routes", "set", "c", "--model", "m", option, value, *where)
        assert (ended.status, option in ended.err, f"'{value}' is not a finite number" in ended.err) == (2, True, True)

    @pytest.mark.parametrize("replace", [(), ("--replace",)])
    def test_a_new_one_needs_its_model(self, tidegate: Tidegate, where: tuple[str, str], replace: tuple[str, ...]) -> None:
        assert tidegate("routes", "set", "r", "--cache", "on", *replace, *where).err == "error: a new route needs --model\n"

    def test_a_refusal(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        ended = tidegate("routes", "set", "m", "--model", "m", *where)
        assert (ended.status, "model must be another name" in ended.err) == (1, True)


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


class TestPrices:
    def test_from_making_to_deleting(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        more = ("--from", "2026-01-02", "--models", "text_*", "--tenant", "acme")
        shown = ["p", "2026-01-02", "00:00", "0.00000125", "EUR", "text_*", "acme"]
        assert tidegate("prices", "set", "p", "--per-unit", "0.00000125", "--currency", "EUR", *more, *where).table[1:] == [shown]
        assert tidegate("prices", "list", *where).table[1:] == [shown]
        today = datetime.now(UTC).date().isoformat()
        changed = tidegate("prices", "set", "p", "--per-unit", 2, *where)
        assert changed.table[1:] == [["p", "2026-01-02", "00:00", "2", "EUR", "text_*", "acme"]]
        assert changed.err == "price p: per_unit 1.25e-06 -> 2\n"
        assert tidegate("prices", "set", "q", "--per-unit", 2, *where).err == "error: a new price needs --currency\n"
        replaced = tidegate("prices", "set", "p", "--replace", "--per-unit", 2, "--currency", "USD", *where)
        assert replaced.table[1][:2] == ["p", today]
        assert tidegate("prices", "delete", "p", *where) == (0, "", "price p is deleted\n")
        assert tidegate("prices", "list", *where).table[1:] == []

    @pytest.mark.parametrize(("option", "value"), [("--from", "tomorrow"), ("--currency", "euro"), ("--per-unit", "-1")])
    def test_a_refusal(self, tidegate: Tidegate, where: tuple[str, str], option: str, value: str) -> None:
        given = {"--per-unit": "1", "--currency": "EUR", option: value}
        ended = tidegate("prices", "set", "p", *(word for pair in given.items() for word in pair), *where)
        assert (ended.status, ended.out) == (1, "")


class TestUsage:
    @pytest.fixture(autouse=True)
    def used(self, bench: Bench) -> None:
        today = datetime.now(UTC).date().isoformat()
        bench.usage.usage.sums = {
            UsageKey(today, "acme", "a"): Usage(requests=3, refused=1, compute_units=12.5),
            UsageKey(today, "b", "a"): Usage(requests=4, compute_units=2.0),
        }

    def test_as_a_table(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        tidegate("prices", "set", "u", "--per-unit", 2, "--currency", "EUR", "--tenant", "acme", *where)
        ends_s = time.monotonic() + 100
        while (table := tidegate("usage", *where).table)[1][-1] != "EUR":  # until it is known
            assert time.monotonic() < ends_s, table
        assert table == [
            ["tenant", "requests", "failed", "refused", "rows", "elements", "compute_units", "cache_hits", "cost"],
            ["acme", "3", "0", "1", "0", "0", "12.5", "0", "25.00", "EUR"],
            ["b", "4", "0", "0", "0", "0", "2", "0", "2", "units", "without", "a", "price"],
        ]
        tidegate("prices", "delete", "u", *where)

    def test_as_csv(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        ended = tidegate("usage", "--by", "model,tenant", "--since", "today", "--tenant", "acme", "--format", "csv", *where)
        head, *rows = csv.reader(io.StringIO(ended.out))
        assert head[:3] == ["model", "tenant", "requests"]
        assert [row[:3] for row in rows] == [["a", "acme", "3"]]

    def test_as_json(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        report = json.loads(tidegate("usage", "--by", "", "--model", "a", "--format", "json", *where).out)
        assert (report["by"], [row["requests"] for row in report["rows"]]) == ([], [7])

    def test_nothing_used(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        assert len(tidegate("usage", "--until", "1d", *where).table) == 1

    def test_a_refusal(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        ended = tidegate("usage", "--by", "month", *where)
        assert (ended.status, ended.out, "error: by: " in ended.err) == (1, "", True)
