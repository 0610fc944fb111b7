"""A Triton that is there and says nothing: one that pauses is kept, one that hangs is killed and started again."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e import tidegate as servers
from tests.e2e.fleets import answer_of, ask, counted, loaded, shown, write_models
from tests.e2e.loads import bad_models
from tests.e2e.nodes import EMBEDDED, NODES, fleet_on
from tests.e2e.processes import triton_of
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate, command_line, living, wait_for

pytestmark = pytest.mark.timeout(300)

SILENCE_S = 4.0
PAUSE_S = 0.05
"""Pause of a caller after each answer: it is who is asked that is tested, not the load."""
ENV = {"TIDEGATE_SILENCE_TIMEOUT_S": str(SILENCE_S)}


def only_triton(running: Tidegate) -> int:
    found = [pid for pid in living(running.below()) if command_line(pid).split(b"\0")[0].endswith(b"tritonserver")]
    assert len(found) == 1, found
    return found[0]


@contextmanager
def mostly_stopped(pid: int) -> Iterator[None]:
    """Within the block it runs for a third of each second, as on a machine that has too much to do."""
    done = threading.Event()

    def hold() -> None:
        while not done.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.7)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_the_only_one_is_kept_while_it_pauses_loads_or_has_too_much_to_do_and_replaced_once_it_hangs(tmp_path: Path) -> None:
    write_models(tmp_path / "models", ("m0",))
    bad_models.write(tmp_path / "models", "slow_start", files={"1/model.py": bad_models.code(f"import time; time.sleep({2 * SILENCE_S})")})
    flags = ("--model-repository", str(tmp_path / "models"), COMPLETE, "--load", "m0", "--load", "slow_start")
    running = servers.start(tmp_path / "state", *flags, env=ENV)
    try:
        triton = only_triton(running)
        with mostly_stopped(triton):
            time.sleep(2 * SILENCE_S)
        os.kill(triton, signal.SIGSTOP)
        time.sleep(SILENCE_S / 2)
        os.kill(triton, signal.SIGCONT)
        assert answer_of(ask(running, "m0")) == 1.0
        assert only_triton(running) == triton, running.said()

        os.kill(triton, signal.SIGSTOP)
        hung_s = time.monotonic()
        wait_for(lambda: triton not in living({triton}), what="its end")
        assert time.monotonic() - hung_s >= SILENCE_S
        wait_for(lambda: counted(running, "tidegate_triton_up") == 1, what="the next one")
        assert answer_of(ask(running, "m0")) == 1.0
        assert only_triton(running) != triton
        told = f"Triton has said nothing for {SILENCE_S:g} s (TIDEGATE_SILENCE_TIMEOUT_S); Triton was killed by SIGKILL"
        assert told in running.said()
        with urllib.request.urlopen(running.endpoints["admin"] + "/events?follow=false") as answer:
            events = answer.read()
        kinds = re.findall(rb"event: (triton\.\w+)", events)
        assert kinds[-3:] == [b"triton.silent", b"triton.down", b"triton.up"], kinds
        assert set(kinds[:-3]) == {b"triton.silent", b"triton.answering"}
        assert b"Triton has said nothing for 4 s" in events, events.decode()
    finally:
        running.kill()


@pytest.mark.parametrize("place", [EMBEDDED, NODES])
def test_in_a_fleet_it_is_replaced_while_the_others_answer(place: str, tmp_path: Path) -> None:
    write_models(tmp_path / "models", ("m0",))
    with (tmp_path / "models" / "m0" / "config.pbtxt").open("a") as config:
        config.write('parameters { key: "tidegate_min_replicas" value { string_value: "2" } }\n')
    with fleet_on(place, tmp_path, "--memory-budget", "1GiB", repository=tmp_path / "models", sources=(COMPLETE,), env=ENV) as (running, _):
        wait_for(lambda: all(models == {"m0"} for models in loaded(running).values()), what="a copy on each")
        name = shown(running)["servers"][0]["name"]
        triton = triton_of(running, name)
        os.kill(triton, signal.SIGSTOP)
        wait_for(lambda: server_is(running, name, "is_silent"), what="its silence")
        while triton in living({triton}):
            assert answer_of(ask(running, "m0")) == 1.0
            time.sleep(PAUSE_S)
        wait_for(lambda: loaded(running)[name] == {"m0"}, what="a copy on the next one", timeout_s=LONG_S)
        assert triton_of(running, name) != triton
        kinds = [(event["kind"], event["reason"]) for event in shown(running)["events"] if event["server"] == name and not event["model"]]
        assert [kind for kind, _ in kinds] == ["silent", "down", "up"]
        if place == EMBEDDED:
            assert (
                kinds[1][1]
                == f"Triton has said nothing for {SILENCE_S:g} s (TIDEGATE_SILENCE_TIMEOUT_S) and is being restarted; with it m0"
            )
        host = running.nodes[0] if place == NODES else running
        assert f"Triton has said nothing for {SILENCE_S:g} s" in host.said()


def server_is(running: Tidegate, name: str, what: str) -> bool:
    return bool(next(server for server in shown(running)["servers"] if server["name"] == name)[what])
