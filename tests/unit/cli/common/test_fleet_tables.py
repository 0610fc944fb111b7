from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console, RenderableType

from control_plane.cli.common.fleet_tables import fleet_tables, tables_that_fit
from tests.unit.cli.admin.fleet_answers import MIB, MODEL, REPLICA, SERVER


def fleet(**fields: Any) -> dict[str, Any]:
    return {"is_leader": True, "servers": [SERVER], "models": [MODEL], "events": [], "notes": [], **fields}


def printed(tables: RenderableType, *, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), no_color=True)
    with console.capture() as capture:
        console.print(tables)
    return [line.rstrip() for line in capture.get().splitlines()]


def lines(found: dict[str, Any], *, width: int = 80, events: int = 10, models: int | None = None) -> list[str]:
    return printed(fleet_tables(found, events=events, models=models), width=width)


def test_what_servers_lack_is_said() -> None:
    assert "note: triton-1: no node" in lines(fleet(notes=["triton-1: no node"]))
    assert not [line for line in lines(fleet()) if "note" in line]


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "up"),
        ({"is_ejected": True}, "ejected"),
        ({"is_silent": True, "is_ejected": True}, "silent"),
        ({"is_draining": True, "is_ejected": True}, "leaving"),
        ({"is_up": False, "is_draining": True, "is_ejected": True}, "down"),
    ],
)
def test_a_server_s_state(fields: dict[str, Any], state: str) -> None:
    assert f"triton-0  {state}  30 MiB of 50 MiB" in lines(fleet(servers=[{**SERVER, **fields}]))


def test_pool_and_labels_of_servers_that_have_them() -> None:
    found = fleet(servers=[{**SERVER, "pool": "short", "labels": {"zone": "[b]eu", "gpu": "t4"}}])
    assert "triton-0  up  30 MiB of 50 MiB  pool short  gpu=t4  zone=[b]eu" in lines(found)


def test_replicas_say_what_they_do_also_without_colour() -> None:
    replicas = [
        {**REPLICA, "model": "loading", "state": "LOADING", "ready_in_s": 3.21},
        {**REPLICA, "model": "leaving", "state": "UNLOADING"},
        {**REPLICA, "model": "holding", "sequences": 2},
        REPLICA,
    ]
    assert "  loading (loads, 3.2 s), leaving (unloads), holding (2 seq.), m0" in lines(fleet(servers=[{**SERVER, "replicas": replicas}]))


def test_models_from_the_nearest_tier_on_and_the_most_used_first() -> None:
    models = [
        {**MODEL, "name": "cold", "tier": "cold", "fetch_s": 9.6, "fetch_bytes": 1200 * MIB, "load_s": 11.0},
        {**MODEL, "name": "unseen", "tier": "cold", "fetch_s": 5.0, "fetch_bytes": None, "uses_per_s": 0.1},
        {**MODEL, "name": "warm", "tier": "warm", "servers": [], "uses_per_s": 9.0},
        {**MODEL, "name": "rare", "uses_per_s": 0.01},
        {**MODEL, "name": "busy", "uses_per_s": 8.0, "servers": ["triton-0", "triton-1"], "min_replicas": 0, "max_replicas": 2},
    ]
    shown = lines(fleet(models=models))
    table = [line.split() for line in shown[shown.index("models") + 2 :]]
    assert [row[0] for row in table] == ["busy", "rare", "warm", "cold", "unseen"]
    assert table[0][2:4] == ["2", "(0-2)"]
    assert (table[3][-4:], table[4][-2:]) == (["1.2", "GiB,", "10", "s"], ["5", "s"])
    assert "to fetch" not in "\n".join(lines(fleet()))


def test_what_is_not_served_is_told_with_its_reason() -> None:
    models = [
        {**MODEL, "name": "bad", "quarantined_for_s": 120.0, "why_quarantined": "no weights\nTraceback"},
        {**MODEL, "name": "gone", "is_suspended": True},
    ]
    shown = lines(fleet(models=models))
    assert "bad is quarantined for 120 s: no weights" in shown
    assert "gone is not loaded on demand: an administrator has unloaded it" in shown


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"kind": "down", "reason": "Triton was killed by SIGKILL and is being restarted"}, "down server triton-1: Triton was killed by"),
        ({"kind": "up", "seconds": 2.25}, "up server triton-1 after 2.2 s"),
        ({"kind": "ejected", "reason": "it is slow"}, "ejected server triton-1: it is slow"),
        ({"kind": "loaded", "model": "m", "seconds": 2.25}, "loaded m on triton-1 in 2.2 s"),
    ],
)
def test_events_are_of_models_and_of_servers(event: dict[str, Any], line: str) -> None:
    told = {"at_s": 0.0, "model": "", "server": "triton-1", "reason": "", "seconds": 0.0, **event}
    assert any(line in " ".join(shown.split()) for shown in lines(fleet(events=[told]), width=120))


def test_times_of_events_are_utc_as_in_all_other_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"at_s": 1e9, "kind": "up", "model": "", "server": "triton-1", "reason": "", "seconds": 0.0}
    try:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("TZ", "JST-9")
            time.tzset()
            assert any("01:46:40 up" in " ".join(line.split()) for line in lines(fleet(events=[told])))
    finally:
        time.tzset()


def test_only_the_leader_knows_what_happened() -> None:
    assert not any("Another process" in line for line in lines(fleet()))
    assert any("Another process" in line for line in lines(fleet(is_leader=False)))


def many(count: int = 40) -> dict[str, Any]:
    names = [f"speaker_embedding_large_{number:02d}" for number in range(count)]
    replicas = [{**REPLICA, "model": name} for name in names[:12]]
    models = [{**MODEL, "name": name, "uses_per_s": float(count - number)} for number, name in enumerate(names)]
    reason = "load failed for model 'x': version 1 is at UNAVAILABLE state: Internal: RuntimeError: its weights are missing"
    event = {"at_s": 1e9, "kind": "failed", "model": names[0], "server": "triton-1", "reason": reason, "seconds": 0.0}
    return fleet(
        servers=[{**SERVER, "name": f"triton-{number}", "replicas": replicas} for number in range(3)], models=models, events=[event] * 10
    )


@pytest.mark.parametrize("width", [80, 140])
def test_nothing_is_cut_off_and_names_stay_whole(width: int) -> None:
    shown = lines(many(), width=width)
    assert max(map(len, shown)) <= width
    text = "\n".join(shown)
    assert all(text.count(model["name"]) >= 1 for model in many()["models"])
    assert " ".join(text.split()).count("its weights are missing") == 10
    assert "…" not in text


@pytest.mark.parametrize("height", [32, 40, 60, 100])
def test_a_live_table_shows_what_there_is_room_for(height: int) -> None:
    def rows_of(tables: RenderableType) -> int:
        return len(printed(tables))

    tables = tables_that_fit(many(), height=height, events=10, models=None, rows_of=rows_of)
    shown = printed(tables)
    assert len(shown) <= height
    seen = [line.split()[0] for line in shown if " hot " in line]
    assert len(seen) >= 5
    assert seen == [model["name"] for model in many()["models"]][: len(seen)]
    assert (f"and {40 - len(seen)} more" in shown) is (len(seen) < 40)


def test_as_many_models_as_are_asked_for() -> None:
    shown = lines(many(), models=2, events=0)
    assert [line.split()[0] for line in shown if " hot " in line] == ["speaker_embedding_large_00", "speaker_embedding_large_01"]
    assert "and 38 more" in shown
    assert "latest" not in shown


def test_what_is_told_does_nothing_to_the_terminal() -> None:
    evil = "a\x1b[2J\x07[red]b"
    event = {"at_s": 1e9, "kind": "failed", "model": evil, "server": evil, "reason": evil, "seconds": 0.0}
    models = [{**MODEL, "name": evil, "quarantined_for_s": 1.0, "why_quarantined": evil}]
    found = fleet(servers=[{**SERVER, "name": evil, "pool": evil, "replicas": [{**REPLICA, "model": evil}]}], models=models, events=[event])
    text = "\n".join(lines(found, width=300))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.count("a [2J [red]b") == 9
