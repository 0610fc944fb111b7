"""Models in parts on two Tritons, of which neither has room for the whole: answered as one model, and as Triton's ensemble would be."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from control_plane.admin.client import AdminClient
from tests.e2e.nodes import EMBEDDED, fleet_on
from tests.e2e.raw_http import exchange
from tests.e2e.sharding.sharded_models import PLAIN, SHARDED, write_repository
from tests.e2e.tidegate import LONG_S, Tidegate, command_line, descendants, wait_for

_IDS = np.array([[101, 7592, 2088, 102], [101, 7592, 102, 0]], np.int64)
_MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.int64)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    root = tmp_path_factory.mktemp("sharding")
    write_repository(root / "models")
    with fleet_on(EMBEDDED, root / "state", "--memory-budget", "100MiB", repository=root / "models") as (running, _):
        yield running


def _loaded(fleet: Tidegate) -> dict[str, set[str]]:
    """Models that are ready, by server."""
    servers = AdminClient(fleet.endpoints["admin"]).ask("GET", "fleet")["servers"]
    return {server["name"]: {each["model"] for each in server["replicas"] if each["state"] == "READY"} for server in servers}


def _http(fleet: Tidegate) -> Any:
    return tritonclient.http.InferenceServerClient(fleet.address("http"), network_timeout=LONG_S, connection_timeout=LONG_S)


def _patient(kind: str) -> dict[str, Any]:
    """Options of a request that may wait for loads: on a busy machine each takes long. The client adds to its headers."""
    return {"headers": {"tidegate-timeout-ms": str(int(LONG_S * 1000))}} if kind == "http" else {"client_timeout": LONG_S}


def _embedding(fleet: Tidegate, kind: str, model: str, *, binary: bool = True) -> np.ndarray[Any, Any]:
    library = tritonclient.http if kind == "http" else tritonclient.grpc
    inputs = [library.InferInput(name, _IDS.shape, "INT64") for name in ("INPUT_IDS", "ATTENTION_MASK")]
    for each, data in zip(inputs, (_IDS, _MASK), strict=True):
        each.set_data_from_numpy(data, **({"binary_data": binary} if kind == "http" else {}))
    outputs = [library.InferRequestedOutput("EMBEDDING", **({"binary_data": binary} if kind == "http" else {}))]
    client = _http(fleet) if kind == "http" else tritonclient.grpc.InferenceServerClient(fleet.address("grpc"))
    try:
        found: np.ndarray[Any, Any] = client.infer(model, inputs, outputs=outputs, **_patient(kind)).as_numpy("EMBEDDING")
        return found
    finally:
        client.close()


def test_an_encoder_cut_in_two_answers_as_uncut_and_its_parts_are_loaded_when_they_are_asked_for(fleet: Tidegate) -> None:
    uncut = _embedding(fleet, "grpc", "encoder")
    assert not {"encoder_front", "encoder_back"} & set().union(*_loaded(fleet).values())
    assert _http(fleet).is_model_ready("encoder_sharded")  # its parts are loadable
    for kind in ("http", "grpc"):
        np.testing.assert_array_equal(_embedding(fleet, kind, "encoder_sharded"), uncut)
    np.testing.assert_array_equal(_embedding(fleet, "http", "encoder_sharded", binary=False), uncut)
    at = {part: {name for name, models in _loaded(fleet).items() if part in models} for part in ("encoder_front", "encoder_back")}
    assert at["encoder_front"].isdisjoint(at["encoder_back"]), at
    assert "encoder_sharded" not in set().union(*_loaded(fleet).values())
    index = {line["name"]: line for line in _http(fleet).get_model_repository_index()}
    assert index["encoder_sharded"] == {"name": "encoder_sharded", "version": "1", "state": "READY"}


def test_equal_requests_find_the_parts_answers_in_the_cache(fleet: Tidegate) -> None:
    def hits() -> float:
        page = exchange(fleet.port_of_metrics(), "GET", "/metrics", timeout_s=LONG_S).decode()
        found = [line for line in page.splitlines() if line.startswith("tidegate_cache") and 'status="hit"' in line]
        return sum(float(line.split()[-1]) for line in found if 'model="encoder_front"' in line or 'model="encoder_back"' in line)

    _embedding(fleet, "grpc", "encoder_sharded")

    def are_both_found() -> bool:
        before = hits()
        _embedding(fleet, "http", "encoder_sharded")  # the parts are asked over gRPC, whatever the caller speaks
        return hits() == before + 2

    wait_for(are_both_found, what="a hit for each part")


def test_openais_embeddings_of_a_sharded_model_are_those_of_its_infer(fleet: Tidegate) -> None:
    texts = ["the tide", "waits", *(f"for no {number}" for number in range(10))]  # more than one batch
    body = json.dumps({"model": "texts_sharded", "input": texts}).encode()
    patient = [("tidegate-timeout-ms", str(int(LONG_S * 1000)))]
    head, _, said = exchange(fleet.port("http"), "POST", "/v1/embeddings", body, patient, timeout_s=LONG_S).partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0], said
    found = np.array([row["embedding"] for row in json.loads(said)["data"]], np.float32)
    text = tritonclient.http.InferInput("TEXT", (2, 1), "BYTES")
    text.set_data_from_numpy(np.array([[each.encode()] for each in texts[:2]], object))
    asked = _http(fleet).infer("texts_sharded", [text], **_patient("http")).as_numpy("EMBEDDING")
    np.testing.assert_allclose(found[:2], asked, atol=1e-5)  # rows are padded to their batch's longest
    assert found.shape == (12, 384)
    _, _, listed = exchange(fleet.port("http"), "GET", "/v1/models", timeout_s=LONG_S).partition(b"\r\n\r\n")
    assert "texts_sharded" in [each["id"] for each in json.loads(listed)["data"]]
    chat = json.dumps({"model": "texts_sharded", "messages": [{"role": "user", "content": "hi"}]}).encode()
    refused = exchange(fleet.port("http"), "POST", "/v1/chat/completions", chat, timeout_s=LONG_S)
    assert b" 501 " in refused.splitlines()[0], refused


def _ask(fleet: Tidegate, model: str, said: dict[str, Any], *headers: tuple[str, str]) -> bytes:
    return exchange(fleet.port("http"), "POST", f"/v2/models/{model}/infer", json.dumps(said).encode(), list(headers), timeout_s=LONG_S)


def _x(*data: float, datatype: str = "FP32") -> dict[str, Any]:
    return {"name": "X", "shape": [1, len(data)], "datatype": datatype, "data": list(data)}


_T: dict[str, Any] = {"name": "T", "shape": [1, 1], "datatype": "BYTES", "data": ['h\u0001"/é']}

CASES: dict[str, dict[str, Any]] = {
    "all outputs": {"id": "7", "inputs": [_x(1, 0.5, 3e20, 2.0**60, -2.5), _T]},
    "batch": {"inputs": [{**_x(1, 2), "shape": [2, 1], "data": [[1], [2]]}, {**_T, "shape": [2, 1], "data": ["a", ""]}]},
    "binary outputs": {"inputs": [_x(1, 2), _T], "parameters": {"binary_data_output": True}},
    "one binary": {"inputs": [_x(1), _T], "outputs": [{"name": "Y"}, {"name": "B", "parameters": {"binary_data": True}}]},
    "outputs of the first part": {"inputs": [_x(1), _T], "outputs": [{"name": "S"}]},
    "not a number": {"inputs": [_x(3e38), _T], "outputs": [{"name": "Y"}]},
    "a missing input": {"inputs": [_x(1)]},
    "another data type": {"id": "7", "inputs": [_x(1, datatype="INT32"), _T]},
    "another rank": {"inputs": [{**_x(1, 2), "shape": [1, 2, 1]}, _T]},
    "too large a batch": {"inputs": [{**_x(*range(9)), "shape": [9, 1]}, {**_T, "shape": [9, 1], "data": ["a"] * 9}]},
    "two batch sizes": {"inputs": [{**_x(1, 2), "shape": [2, 1]}, _T]},
    "an input twice": {"inputs": [_x(1), _T, _T]},
    "an unknown output": {"inputs": [_x(1), _T], "outputs": [{"name": "W"}]},
}
"""Requests over HTTP whose answers are to be Triton's to the byte, but for the order of the head's fields."""


@pytest.mark.parametrize("case", CASES)
def test_what_triton_says_of_its_ensemble_the_gateway_says_of_the_parts(fleet: Tidegate, case: str) -> None:
    def answer(model: str) -> tuple[bytes, list[bytes], bytes]:
        head, _, body = _ask(fleet, model, CASES[case]).replace(model.encode(), b"<model>").partition(b"\r\n\r\n")
        line, *fields = head.split(b"\r\n")
        return line, sorted(fields), body

    assert answer(SHARDED) == answer(PLAIN)


def _grpc_answers(fleet: Tidegate, model: str, *names: str) -> dict[str, Any]:
    client = tritonclient.grpc.InferenceServerClient(fleet.address("grpc"))
    inputs = [tritonclient.grpc.InferInput("X", (1, 2), "FP32"), tritonclient.grpc.InferInput("T", (1, 1), "BYTES")]
    inputs[0].set_data_from_numpy(np.array([[1.1, -2]], np.float32))
    inputs[1].set_data_from_numpy(np.array([[b"\xff"]], object))  # no text
    answer = client.infer(model, inputs, request_id="7", outputs=[tritonclient.grpc.InferRequestedOutput(name) for name in names] or None)
    said = answer.get_response(as_json=True)
    config = client.get_model_config(model, as_json=True)
    known = client.get_model_metadata(model, as_json=True)
    client.close()
    return {"infer": said, "metadata": known, "inputs": config["config"]["input"], "outputs": config["config"]["output"]}


@pytest.mark.parametrize("names", [(), ("Y",), ("Y", "S")])
def test_over_grpc_answers_metadata_and_configuration_are_those_of_tritons_ensemble(fleet: Tidegate, names: tuple[str, ...]) -> None:
    told = {model: json.dumps(_grpc_answers(fleet, model, *names), sort_keys=True).replace(model, "<model>") for model in (SHARDED, PLAIN)}
    assert told[SHARDED] == told[PLAIN]


def test_a_part_that_fails_is_named(fleet: Tidegate) -> None:
    said = _ask(fleet, SHARDED, {"inputs": [_x(-1), _T]})
    assert b"500 Internal Server Error" in said
    assert b"in ensemble 'pair_sharded', part 'front'" in said
    assert b"it takes no -1" in said


@pytest.mark.parametrize(
    ("model", "more", "status", "text"),
    [
        pytest.param(SHARDED, {"parameters": {"sequence_id": 7}}, b" 501 ", b"no server has it as a whole", id="a sequence"),
        pytest.param(
            SHARDED,
            {"outputs": [{"name": "Y", "parameters": {"classification": 1}}]},
            b" 501 ",
            b"without sequences, classes",
            id="classes",
        ),
        pytest.param("nested", {}, b" 501 ", b"'pair_sharded' is sharded itself", id="a part that is sharded"),
        pytest.param("circle", {}, b" 422 ", b"wait for each other", id="a circle"),
    ],
)
def test_what_is_not_carried_out_is_refused_with_the_reason(
    fleet: Tidegate, model: str, more: dict[str, Any], status: bytes, text: bytes
) -> None:
    said = _ask(fleet, model, {"inputs": [_x(1), _T], **more})
    assert status in said.partition(b"\r\n")[0]
    assert text in said
    assert (model in (SHARDED,)) is _http(fleet).is_model_ready(model)


def test_a_deadline_holds_for_all_parts_together(fleet: Tidegate) -> None:
    said = _ask(fleet, SHARDED, {"inputs": [_x(-3), _T]}, ("tidegate-timeout-ms", "300"))
    assert b" 504 " in said.partition(b"\r\n")[0]
    assert b"in ensemble 'pair_sharded', part 'front'" in said


def test_what_is_loaded_and_unloaded_is_the_parts(fleet: Tidegate) -> None:
    client = _http(fleet)
    client.unload_model(SHARDED)
    assert not client.is_model_ready(SHARDED)
    assert b" 404 " in _ask(fleet, SHARDED, {"inputs": [_x(1), _T]}).partition(b"\r\n")[0]
    assert client.is_model_ready("front")
    client.load_model(SHARDED)
    assert b" 200 " in _ask(fleet, SHARDED, {"inputs": [_x(1), _T]}).partition(b"\r\n")[0]


def test_a_server_that_is_killed_under_load_costs_no_request_where_each_part_has_two_copies(fleet: Tidegate) -> None:
    wait_for(lambda: all({"front", "back"} <= models for models in _loaded(fleet).values()), what="two copies of each part")
    wrong, counts, ends = list[bytes](), [0], threading.Event()

    def keep_asking(number: int) -> None:
        while not ends.wait(0.01):
            said = _ask(fleet, SHARDED, {"inputs": [_x(number), _T], "outputs": [{"name": "Y"}]})
            counts[0] += 1
            if f'"data":[{number * 2 + 0.5}]'.encode() not in said:
                wrong.append(said)

    threads = [threading.Thread(target=keep_asking, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    before = counts[0]
    os.kill(_triton_of(fleet, "triton-1"), signal.SIGKILL)
    time.sleep(2.0)
    ends.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert counts[0] > before > 0
    wait_for(lambda: all({"front", "back"} <= models for models in _loaded(fleet).values()), what="the copies come back")


def _triton_of(fleet: Tidegate, server: str) -> int:
    lines = {pid: command_line(pid).split(b"\0") for pid in descendants(fleet.process.pid)}
    return next(
        pid for pid, line in lines.items() if line[0].endswith(b"tritonserver") and any(f"/{server}/".encode() in each for each in line)
    )


def test_the_caller_is_counted_once_and_no_part_is(fleet: Tidegate) -> None:
    def counted() -> dict[str, float]:
        page = exchange(fleet.port_of_metrics(), "GET", "/metrics", timeout_s=LONG_S).decode()
        lines = [line for line in page.splitlines() if line.startswith("tidegate_requests_total{") and 'outcome="answered"' in line]
        return {name: sum(float(line.split()[-1]) for line in lines if f'model="{name}"' in line) for name in (SHARDED, "front", "back")}

    before = counted()
    _ask(fleet, SHARDED, {"inputs": [_x(1), _T]})
    wait_for(lambda: counted()[SHARDED] == before[SHARDED] + 1, what="the count")
    assert {name: counted()[name] - before[name] for name in before} == {SHARDED: 1, "front": 0, "back": 0}
