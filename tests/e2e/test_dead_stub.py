"""A Python stub that has died while Triton still says that its model is ready is loaded anew, and the others serve on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.e2e.conftest import Start
from tests.e2e.raw_http import status
from tests.e2e.test_fleet import answer_of, ask, loaded, shown, write_models
from tests.e2e.tidegate import Tidegate, descendants


def stubs_of(running: Tidegate, model: str) -> list[int]:
    """By their command lines, among the processes that this gateway has started."""
    found = {pid: Path(f"/proc/{pid}/cmdline") for pid in descendants(running.process.pid)}
    lines = {pid: line.read_bytes().split(b"\0") for pid, line in found.items() if line.exists()}
    return [pid for pid, line in lines.items() if b"python_backend_stub" in line[0] and f"/{model}/".encode() in line[1]]


def test_all_that_fits_is_loaded_at_the_start_and_a_stub_that_dies_is_replaced(start: Start, tmp_path: Path) -> None:
    write_models(tmp_path / "models", ("m0", "m1", "m2"))
    config = tmp_path / "models/m2/config.pbtxt"
    config.write_text(config.read_text() + 'parameters { key: "tidegate_priority" value { string_value: "5" } }')
    flags = ("--memory-budget", "50MiB", "--model-repository", str(tmp_path / "models"), "--load", "*")
    running = start(tmp_path / "state", *flags)
    assert list(loaded(running).values()) == [{"m2", "m0"}], "what matters most, then by name; for m1 there is no room"

    (stub,) = stubs_of(running, "m2")
    os.kill(stub, signal.SIGKILL)
    seen = [ask(running, "m2") for _ in range(3)]
    assert all(status(raw) == 500 and b"is not healthy" in raw for raw in seen), seen
    assert answer_of(ask(running, "m2")) == 3.0, "it waited for the new one"
    assert stubs_of(running, "m2") != [stub]
    assert answer_of(ask(running, "m0")) == 1.0
    told = [(event["kind"], event["reason"]) for event in shown(running)["events"] if event["model"] == "m2"]
    assert told[-2:] == [("lost", "its Python process has died"), ("loaded", "")]
    assert list(loaded(running).values()) == [{"m2", "m0"}]
