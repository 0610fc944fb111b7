"""Two Tritons with room for two of six models each: whatever is asked for is served, and memory is never promised twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from control_plane.admin.client import AdminClient
from tests.e2e.fleets import (
    BUDGET_BYTES,
    MIB,
    MODELS,
    answer_of,
    ask,
    loaded,
    loads,
    require_within_budget,
    shown,
    watching,
    write_models,
)
from tests.e2e.nodes import EMBEDDED, fleet_on
from tests.e2e.raw_http import exchange, status
from tests.e2e.tidegate import LONG_S, Tidegate, run_cli, wait_for


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_models(root, (*MODELS, "broken"))
    write_models(root, ("huge",), size="51MiB")
    return root


@pytest.fixture(scope="module")
def fleet(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    flags = ("--memory-budget", "50MiB", "--load", "m5")
    with fleet_on(EMBEDDED, tmp_path_factory.mktemp("fleet"), *flags, repository=repository) as (running, _):
        yield running


def test_every_model_is_served_over_either_protocol_and_memory_is_never_promised_twice(fleet: Tidegate) -> None:
    grpc = tritonclient.grpc.InferenceServerClient(fleet.address("grpc"))
    wanted = tritonclient.grpc.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), np.float32))
    with watching(fleet, require_within_budget):
        for number, model in enumerate(MODELS):
            over_grpc = number % 2 == 1
            answer = grpc.infer(model, [wanted]).as_numpy("OUTPUT0").item() if over_grpc else answer_of(ask(fleet, model))
            assert answer == 1 + number
    events = shown(fleet)["events"]
    assert {event["model"] for event in events if event["kind"] == "loaded"} == set(MODELS)
    evicted = [event for event in events if event["kind"] == "evicted"]
    assert evicted
    assert all(event["reason"].startswith("for 'm") for event in evicted)
    assert "m5" not in {event["model"] for event in evicted}, "it was loaded to stay"


def test_many_at_once_for_one_that_is_nowhere_are_one_load(fleet: Tidegate) -> None:
    nowhere = next(model for model in MODELS if not any(model in models for models in loaded(fleet).values()))
    before = len(loads(fleet))
    found: list[float] = []
    threads = [threading.Thread(target=lambda: found.append(answer_of(ask(fleet, nowhere)))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1.0 + MODELS.index(nowhere)] * 20
    assert loads(fleet)[before:] == [nowhere]


def test_who_cannot_wait_for_the_load_is_told_how_long_it_takes_and_finds_it_there_later(fleet: Tidegate) -> None:
    nowhere = next(model for model in MODELS if not any(model in models for models in loaded(fleet).values()))
    refused = ask(fleet, nowhere, tidegate_timeout_ms="20")
    assert status(refused) == 503
    assert b"is being loaded" in refused
    assert int(refused.lower().partition(b"\r\nretry-after: ")[2].partition(b"\r\n")[0]) >= 1
    wait_for(lambda: any(nowhere in models for models in loaded(fleet).values()), what="its load")
    assert answer_of(ask(fleet, nowhere, tidegate_timeout_ms="5000")) == 1 + MODELS.index(nowhere)


def test_what_a_cold_model_is_can_be_asked(fleet: Tidegate) -> None:
    client = tritonclient.http.InferenceServerClient(fleet.address("http"), network_timeout=LONG_S)
    nowhere = next(model for model in MODELS if not any(model in models for models in loaded(fleet).values()))
    assert client.get_model_metadata(nowhere)["inputs"][0]["name"] == "INPUT0"
    grpc = tritonclient.grpc.InferenceServerClient(fleet.address("grpc"))
    nowhere = next(model for model in MODELS if not any(model in models for models in loaded(fleet).values()))
    assert grpc.get_model_config(nowhere).config.name == nowhere


def test_what_fails_to_load_is_left_alone_for_a_while_and_says_why(fleet: Tidegate) -> None:
    first = ask(fleet, "broken", tidegate_timeout_ms="1500")
    assert status(first) == 503, first
    wait_for(lambda: any(event["kind"] == "failed" for event in shown(fleet)["events"]), what="its failure")
    again = ask(fleet, "broken", tidegate_timeout_ms="100")
    assert status(again) == 503
    assert b"its weights are missing" in again
    assert answer_of(ask(fleet, "m5")) == 6.0


def test_what_no_server_has_room_for_and_what_is_nowhere_is_said_at_once(fleet: Tidegate) -> None:
    refused = ask(fleet, "huge")
    assert status(refused) == 503
    assert b"needs 53477376 bytes" in refused
    assert status(ask(fleet, "nonesuch")) == 404


def test_unloaded_by_an_administrator_it_stays_away_until_it_is_loaded_again(fleet: Tidegate) -> None:
    admin = AdminClient(fleet.endpoints["admin"])
    assert answer_of(ask(fleet, "m0")) == 1.0
    admin.unload("m0")
    assert status(ask(fleet, "m0")) == 404
    assert admin.load("m0")["state"] == "READY"
    assert answer_of(ask(fleet, "m0")) == 1.0
    assert next(model for model in shown(fleet)["models"] if model["name"] == "m0")["min_replicas"] == 1
    admin.unload("m0")
    admin.load("m0")
    admin.unload("m0")  # so that it does not stay
    assert "m0" not in set().union(*loaded(fleet).values())


def test_what_loads_have_taken_is_on_disk_for_the_next_process(fleet: Tidegate) -> None:
    known = {model["name"]: model["load_s"] for model in shown(fleet)["models"] if model["name"] in MODELS}
    written = fleet.state_dir / "fleet-memory.json"
    wait_for(lambda: {name: json.loads(written.read_bytes())["measured"][name]["load_s"] for name in MODELS} == known, what="the file")


def test_v2_clients_are_told_of_the_whole_fleet(fleet: Tidegate) -> None:
    http = tritonclient.http.InferenceServerClient(fleet.address("http"), network_timeout=LONG_S)
    grpc = tritonclient.grpc.InferenceServerClient(fleet.address("grpc"))
    AdminClient(fleet.endpoints["admin"]).unload("m0")
    failed = b"its weights are missing"
    wait_for(lambda: failed in ask(fleet, "broken", tidegate_timeout_ms="5000"), what="the end of a load that fails")
    for model in MODELS[1:3]:
        assert answer_of(ask(fleet, model)) == 1 + MODELS.index(model)

    def index() -> dict[str, Any]:
        return {line["name"]: line for line in http.get_model_repository_index()}

    wait_for(lambda: failed.decode() in index()["broken"].get("reason", ""), what="the end of the load that was asked for last")
    before, listed = loaded(fleet), index()
    assert {*MODELS, "broken", "huge"} <= listed.keys()
    ready = {name for name, line in listed.items() if line.get("state") == "READY"}
    assert ready == set().union(*before.values())
    assert {(line.name, line.state) for line in grpc.get_model_repository_index().models} == {
        (name, line.get("state", "")) for name, line in listed.items()
    }
    for name, is_ready in {**dict.fromkeys(MODELS[1:], True), "m0": False, "huge": False, "nonesuch": False}.items():
        assert http.is_model_ready(name) is grpc.is_model_ready(name) is is_ready, name
    nowhere = next(model for model in MODELS[1:] if model not in ready)
    for found in (http.get_inference_statistics(nowhere), grpc.get_inference_statistics(nowhere, as_json=True)):
        assert [each["name"] for each in found["model_stats"]] == [nowhere]
        assert int(found["model_stats"][0].get("inference_count", 0)) == 0
    counts = [each["inference_count"] for each in http.get_inference_statistics()["model_stats"]]
    assert sum(counts) >= 1, "what was asked for last is loaded"
    assert {each["name"] for each in http.get_inference_statistics()["model_stats"]} == ready
    assert {each.name for each in grpc.get_inference_statistics().model_stats} == ready
    assert loaded(fleet) == before, "being asked of loads nothing"


def test_the_command_line_shows_it(fleet: Tidegate) -> None:
    shown_as_text = run_cli("fleet", "--state-dir", str(fleet.state_dir), "--events", "50")
    assert shown_as_text.returncode == 0, shown_as_text.stderr
    for text in ("triton-0", "triton-1", "50 MiB", "m5", "hot", "evicted", "its weights are missing"):
        assert text in " ".join(shown_as_text.stdout.split()), text  # a long reason goes over several lines
    models = run_cli("models", "list", "--state-dir", str(fleet.state_dir))
    rows = {line.split()[0]: line.split() for line in models.stdout.splitlines() if line.strip()}
    holder = next(name for name, found in loaded(fleet).items() if "m5" in found)
    assert rows["m5"][1:4] == ["READY", "hot", holder]
    assert rows["huge"][1:3] == ["UNAVAILABLE", "warm"]


def test_metrics_of_both_say_whose_they_are(fleet: Tidegate) -> None:
    for model in MODELS[1:3]:
        assert answer_of(ask(fleet, model)) == 1 + MODELS.index(model)
    assert status(ask(fleet, "huge")) == 503
    wait_for(lambda: loads_less_unloads(samples_of(metrics_page(fleet))) == sum(map(len, loaded(fleet).values())), what="a fleet at rest")
    page = metrics_page(fleet)
    assert 'server="triton-0"' in page
    assert 'server="triton-1"' in page
    assert page.count("# TYPE nv_inference_request_success ") == 1
    samples = samples_of(page)
    assert samples['tidegate_fleet_server_up{server="triton-1"}'] == samples["tidegate_fleet_leader"] == 1
    assert samples['tidegate_fleet_server_budget_bytes{server="triton-0"}'] == BUDGET_BYTES
    assert 24 * MIB <= samples['tidegate_fleet_server_held_bytes{server="triton-0"}'] <= BUDGET_BYTES
    assert samples['tidegate_fleet_models{tier="hot"}'] == len(set().union(*loaded(fleet).values()))
    assert samples['tidegate_fleet_events_total{kind="evicted"}'] >= 1
    assert samples['tidegate_fleet_requests_refused_total{reason="too_large"}'] >= 1
    assert samples["tidegate_fleet_wait_duration_seconds_count"] >= 1


def metrics_page(fleet: Tidegate) -> str:
    return exchange(fleet.port_of_metrics(), "GET", "/metrics").decode()


def samples_of(page: str) -> dict[str, float]:
    text = page.partition("\r\n\r\n")[2]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))}


def loads_less_unloads(samples: dict[str, float]) -> float:
    into, out = (
        samples[f'tidegate_fleet_moves_total{{source="{one}",target="{other}"}}'] for one, other in (("warm", "hot"), ("hot", "warm"))
    )
    return into - out
