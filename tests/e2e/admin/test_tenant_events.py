"""A tenant's own events with workers, before the real Triton: its requests at any worker, its jobs and its usage, and nobody else's."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.accounts import Administrator, id_of, make_first_key
from tests.e2e.admin.test_events import BODY, ask, triton_url
from tests.e2e.conftest import Start
from tests.e2e.tidegate import LONG_S, Tidegate, wait_for

__all__ = ["triton_url"]
Parties = tuple[Tidegate, Administrator, dict[str, str]]


@pytest.fixture(scope="module")
def first_key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("tenant-events") / "own"
    return folder, make_first_key(folder)


@pytest.fixture
def parties(start: Start, first_key: tuple[Path, str], triton_url: str) -> Parties:
    folder, admin_key = first_key
    gateway = start(folder, "--authentication", "--triton-url", triton_url, "--workers", "2")
    administrator = Administrator(gateway, admin_key)
    for tenant in ("red", "blue"):
        administrator.make_tenant(tenant)
    keys = {"red": administrator.make_key("red", "infer:*"), "blue": administrator.make_key("blue", "infer:*")}
    keys["events"] = administrator.make_key("red", "events")
    time.sleep(1.0)  # every worker knows them by now
    return gateway, administrator, keys


class Follower:
    """Somebody who follows a tenant's events until the stream ends."""

    def __init__(self, gateway: Tidegate, key: str, after: str = "") -> None:
        self.events: list[dict[str, Any]] = []
        self.kinds: list[str] = []
        self.end = ""
        self._connection = http.client.HTTPConnection("127.0.0.1", gateway.port("http"), timeout=LONG_S)
        self._connection.request("GET", "/v2/events", headers={"x-api-key": key} | ({"last-event-id": after} if after else {}))
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        assert self._answer.readline().startswith(b"retry:")
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each["data"] for each in self.events if each["type"] == f"io.tidegate.{kind}.v1"]

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def leave(self) -> str:
        """Leave, if it has not ended, and return the id of the last event."""
        with suppress(OSError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(LONG_S)
        self._connection.close()
        return str(self.events[-1]["id"]) if self.events else ""

    def _follow(self) -> None:
        for line in self._lines():
            name, _, value = line.decode().strip().partition(": ")
            if name == "event":
                self.kinds.append(value)
            if name == "data":
                said = json.loads(value)
                if "specversion" in said:
                    self.events.append(said)
                else:
                    self.end = value

    def _lines(self) -> Iterator[bytes]:
        try:
            yield from self._answer
        except (OSError, ValueError, http.client.HTTPException):
            return


def submit(gateway: Tidegate, key: str) -> str:
    with closing(http.client.HTTPConnection("127.0.0.1", gateway.port("http"), timeout=LONG_S)) as connection:
        connection.request("POST", "/v2/models/echo/jobs", json.dumps(BODY), {"x-api-key": key, "content-type": "application/json"})
        answer = connection.getresponse()
        said = json.loads(answer.read())
        assert answer.status == 202, said
        return str(said["id"])


def test_a_tenant_follows_its_requests_jobs_and_usage_at_all_workers_and_nobody_elses(parties: Parties) -> None:
    gateway, administrator, keys = parties
    follower = Follower(gateway, keys["events"])
    wait_for(lambda: ask(gateway.port("http"), keys["red"], request_id="warm") == 200 and follower.of("request.ended"), what="the first")
    for number in range(20):  # each over a connection of its own: both workers get some
        assert ask(gateway.port("http"), keys["red"], request_id=f"red-{number}") == 200
        assert ask(gateway.port("http"), keys["blue"], request_id=f"blue-{number}") == 200
    job, theirs = submit(gateway, keys["red"]), submit(gateway, keys["blue"])
    wait_for(lambda: len({each["request_id"] for each in follower.of("request.ended")} - {"warm", ""}) == 20, what="all requests")
    wait_for(lambda: follower.of("job.ended"), what="the job's end")
    wait_for(lambda: sum(each["requests"] for each in follower.of("usage.recorded")) >= 20, what="usage")
    told = json.dumps(follower.events)
    assert "blue" not in told
    assert theirs not in told
    assert [each["id"] for each in follower.of("job.ended")] == [job]
    assert follower.of("job.ended")[0]["state"] == "succeeded"
    assert {each["tenant"] for each in follower.of("usage.recorded")} == {"red"}
    numbers = [int(each["id"].split("-")[1]) for each in follower.events]
    assert numbers == list(range(1, len(numbers) + 1)), "numbers of its own, without the gaps that others' events would leave"

    last = follower.leave()
    assert ask(gateway.port("http"), keys["red"], request_id="while away") == 200
    for _ in range(3):  # at either worker
        again = Follower(gateway, keys["events"], after=last)
        wait_for(lambda again=again: "while away" in [each["request_id"] for each in again.of("request.ended")], what="what was missed")
        assert int(again.events[0]["id"].split("-")[1]) == len(numbers) + 1
        assert "gap" not in again.kinds
        again.leave()

    ended = Follower(gateway, keys["events"])
    administrator.do("DELETE", f"/keys/{id_of(keys['events'])}")
    wait_for(lambda: ended.is_over, timeout_s=10.0, what="the end of the stream")
    assert "the API key is not valid" in ended.end
    ended.leave()
