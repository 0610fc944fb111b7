"""Fleets of two or three Tritons before small models, each of which adds its number to what it is sent."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from control_plane.admin.client import AdminClient
from tests.e2e.raw_http import exchange, status
from tests.e2e.tidegate import LONG_S, Tidegate

MODELS = tuple(f"m{number}" for number in range(6))

MIB = 2**20

BUDGET_BYTES = 50 * MIB

_LATE_S = 0.5
"""Loads that are begun for the same requests begin together."""

_CODE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        if self.name == "broken":
            raise RuntimeError("its weights are missing")

    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each + int(self.name[1:]))]) for each in found]
"""

_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
parameters { key: "tidegate_resident_bytes" value { string_value: "%s" } }
"""


def write_models(root: Path, names: Iterable[str], *, size: str = "24MiB") -> None:
    """Each adds its number to what it is sent."""
    for name in names:
        (root / name / "1").mkdir(parents=True)
        (root / name / "1/model.py").write_text(_CODE)
        (root / name / "config.pbtxt").write_text(_CONFIG % size)


def shown(fleet: Tidegate) -> dict[str, Any]:
    found: dict[str, Any] = AdminClient(fleet.endpoints["admin"]).ask("GET", "fleet")
    return found


def loaded(fleet: Tidegate) -> dict[str, set[str]]:
    """Models that are ready, by server."""
    return {
        server["name"]: {replica["model"] for replica in server["replicas"] if replica["state"] == "READY"}
        for server in shown(fleet)["servers"]
    }


def loads(fleet: Tidegate) -> list[str]:
    """Models in the order in which their loads ended, without what was begun since a load on another server was late: on a
    slow machine one takes twice as long as is expected of it, and the fleet does not wait for what may hang."""
    found = [event for event in shown(fleet)["events"] if event["kind"] == "loaded"]
    began_s = [event["at_s"] - event["seconds"] for event in found]

    def is_late(number: int, other: int) -> bool:
        one, two = found[number], found[other]
        is_beside = one["model"] == two["model"] and one["server"] != two["server"]
        return is_beside and began_s[other] + _LATE_S < began_s[number] < two["at_s"]

    return [event["model"] for number, event in enumerate(found) if not any(is_late(number, other) for other in range(len(found)))]


def body() -> bytes:
    return json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}).encode()


def ask(fleet: Tidegate, model: str, **fields: str) -> bytes:
    headers = [(name.replace("_", "-"), value) for name, value in fields.items()]
    return exchange(fleet.port("http"), "POST", f"/v2/models/{model}/infer", body(), headers, timeout_s=LONG_S)


def answer_of(raw: bytes) -> float:
    assert status(raw) == 200, raw
    found: float = json.loads(raw.partition(b"\r\n\r\n")[2])["outputs"][0]["data"][0]
    return found


@contextmanager
def watching(fleet: Tidegate, check: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """`check` what is shown again and again meanwhile."""
    done, failures = threading.Event(), list[BaseException]()

    def watch() -> None:
        try:
            while not done.wait(0.15):
                check(shown(fleet))
        except BaseException as exc:
            failures.append(exc)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert not failures, failures


def require_within_budget(found: dict[str, Any]) -> None:
    for server in found["servers"]:
        declared = 24 * MIB * len(server["replicas"])
        loading = [replica for replica in server["replicas"] if replica["state"] == "LOADING" and not replica["bytes"]]  # not begun
        assert declared - 24 * MIB * len(loading) <= server["budget_bytes"] == BUDGET_BYTES, server


def events(fleet: Tidegate, kind: str) -> list[dict[str, Any]]:
    return [event for event in shown(fleet)["events"] if event["kind"] == kind]


def counted(fleet: Tidegate, metric: str, **labels: str) -> float:
    with urllib.request.urlopen(fleet.endpoints["metrics"]) as page:
        lines = page.read().decode().splitlines()
    sample = metric + ("{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else "")
    return next(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == sample)
