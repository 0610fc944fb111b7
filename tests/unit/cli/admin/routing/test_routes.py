"""`tidegate routes` against the admin API on a real port."""

from __future__ import annotations

import pytest

from control_plane.cli.admin.routing.route_text import _targets
from tests.unit.cli.command import Tidegate


class TestRoutes:
    def test_targets_are_given_in_percent(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        more = ("--target", "n:7=5", "--target", "o=0.25%", "--sticky", "header:x-user", "--repeatable")
        shown = ["r", "m", *["n:7", "5", "%,", "o", "0.25", "%,", "by", "header:x-user"], "everybody", "model"]
        assert tidegate("routes", "set", "r", "--model", "m", *more, *where).table[1:] == [shown]
        assert tidegate("routes", "set", "r", "--target", "none", "--sticky", "none", *where).table[1:] == [
            ["r", "m", "everybody", "model"]
        ]
        tidegate("routes", "delete", "r", *where)

    def test_a_change_of_targets_is_told_in_words(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        tidegate("routes", "set", "r", "--model", "m", *where)
        told = "model=n weight=500,model=o version=7 weight=25"
        assert f"route r: targets none -> {told}\n" in tidegate("routes", "set", "r", "--target", "n=5", "--target", "o:7=0.25", *where).err
        assert f"route r: targets {told} -> none\n" in tidegate("routes", "set", "r", "--target", "none", *where).err
        tidegate("routes", "delete", "r", *where)

    def test_faster_models_and_their_budget(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        made = tidegate("routes", "set", "r", "--model", "m", "--faster", "n", "--faster", "o:2", *where)
        assert " ".join(made.table[1]) == "r m n if over the caller's budget, o:2 if over the caller's budget everybody model"
        made = tidegate("routes", "set", "r", "--faster", "n", "--latency-budget-ms", 50, *where)
        assert made.table[1:] == [["r", "m", *["n", "if", "over", "50", "ms"], "everybody", "model"]]
        assert "route r: latency_budget_s none -> 0.05\n" in made.err
        made = tidegate("routes", "set", "r", "--cost-budget-units", 2.5, *where)
        assert made.table[1:] == [["r", "m", *["n", "if", "over", "50", "ms", "or", "2.5", "units"], "everybody", "model"]]
        assert "route r: cost_budget_units none -> 2.5\n" in made.err
        made = tidegate("routes", "set", "r", "--latency-budget-ms", "none", *where)
        assert made.table[1:] == [["r", "m", *["n", "if", "over", "2.5", "units"], "everybody", "model"]]
        made = tidegate("routes", "set", "r", "--faster", "none", "--cost-budget-units", "none", *where)
        assert "route r: cost_budget_units 2.5 -> none\n" in made.err
        assert made.table[1:] == [["r", "m", "everybody", "model"]]
        tidegate("routes", "delete", "r", *where)

    def test_a_mirror_and_its_part(self, tidegate: Tidegate, where: tuple[str, str]) -> None:
        made = tidegate("routes", "set", "r", "--model", "m", "--target", "o=5", "--mirror", "n", *where)
        assert " ".join(made.table[1]) == "r m o 5 %, copies of 10 % to n everybody model"
        made = tidegate("routes", "set", "r", "--mirror-percent", 0.5, *where)
        assert " ".join(made.table[1]) == "r m o 5 %, copies of 0.5 % to n everybody model"
        assert made.err.startswith("route r: mirror.weight 1000 -> 50\n")
        made = tidegate("routes", "set", "r", "--target", "none", "--mirror", "n:2", *where)
        assert " ".join(made.table[1]) == "r m copies of 0.5 % to n:2 everybody model"
        assert tidegate("routes", "list", *where).out == made.out
        made = tidegate("routes", "set", "r", "--mirror", "none", "--mirror-percent", 3, *where)
        assert made.table[1:] == [["r", "m", "everybody", "model"]]
        tidegate("routes", "delete", "r", *where)

    @pytest.mark.parametrize("budget", [0, -1, "nan", "inf", "1e308", "two"])
    def test_what_is_no_cost_budget(self, tidegate: Tidegate, where: tuple[str, str], budget: object) -> None:
        ended = tidegate("routes", "set", "r", "--model", "m", f"--cost-budget-units={budget}", *where)
        assert (ended.status != 0, ended.out) == (True, "")
        assert "cost_budget_units" in ended.err.replace("--cost-budget-units", "cost_budget_units")

    def test_a_route_of_an_older_gateway_which_knows_no_mirrors_and_no_cost_budgets(self) -> None:
        assert _targets({"targets": [], "sticky": "", "latency_budget_s": None, "faster": []}) == ""

    @pytest.mark.parametrize("options", [("--mirror", "m"), ("--mirror-percent", 5), ("--mirror", "n", "--mirror-percent", 101)])
    def test_what_is_no_mirror(self, tidegate: Tidegate, where: tuple[str, str], options: tuple[object, ...]) -> None:
        ended = tidegate("routes", "set", "r", "--model", "m", *options, *where)
        assert (ended.status != 0, ended.out, "mirror" in ended.err) == (True, "", True)

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
