"""`tidegate jobs submit` against a stand-in of the data port: which jobs a second run finds, and which it makes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import prod
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from control_plane.cli import main

Submit = Callable[..., str]
Tidegate = Callable[..., Any]


class Submissions(ThreadingHTTPServer):
    """A data port that knows jobs by their idempotency keys, and each job by its state."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.by_key: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.fields: list[dict[str, str]] = []
        """Header fields about the job, of each submission."""
        self.told: list[list[str]] = []
        """The states that each stream of events tells, one stream after the other."""
        self.shown: dict[str, object] = {}
        self.result = b"the result"
        self.results: list[bytes] = []
        """Results that the gateway answers first, each of them once, before all further requests get `result`."""


class _Answer(BaseHTTPRequestHandler):
    server: Submissions

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.fields.append({name: value for name, value in self.headers.items() if name.startswith("tidegate-job-")})
        job = self.server.by_key.setdefault(self.headers["idempotency-key"], f"job-{len(self.server.by_key)}")
        body = json.dumps({"id": job, "state": self.server.states.setdefault(job, "queued")}).encode()
        self._answer(202, body)

    def do_GET(self) -> None:
        if self.path.endswith("/events") and self.server.told:
            events = (f"event: {each}\ndata: {json.dumps(self._job(each))}\n\n" for each in self.server.told.pop(0))
            self._answer(200, "".join(events).encode())
        elif self.path.endswith("/events"):
            self._answer(429, b'{"error": "too many"}')
        elif self.path.endswith("/result"):
            self._answer(200, self.server.results.pop(0) if self.server.results else self.server.result)
        else:
            self._answer(200, json.dumps(self._job("succeeded") | self.server.shown).encode())

    def _job(self, state: str) -> dict[str, object]:
        return {"id": "job-1", "state": state} | ({"result": "/v2/jobs/job-1/result"} if state == "succeeded" else {})

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def jobs() -> Iterator[Submissions]:
    with Submissions() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def submit(jobs: Submissions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Submit:
    """Hand in one request by the command line, and return the id that it prints."""
    (tmp_path / "request.json").write_text("{}")

    def call(*options: str) -> str:
        words = ("--model", "m", "--request", str(tmp_path / "request.json"), "--url", f"http://127.0.0.1:{jobs.server_port}")
        monkeypatch.setattr(sys, "argv", ["tidegate", "jobs", "submit", *words, *options])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert not ended.value.code, told.err
        return told.out.strip()

    return call


@pytest.fixture
def tidegate(jobs: Submissions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tidegate:
    """Call `tidegate jobs` and return what it prints; it must end well, unless it is to be refused."""

    def call(*words: str, is_refused: bool = False) -> Any:
        monkeypatch.setattr(sys, "argv", ["tidegate", "jobs", *words, "--url", f"http://127.0.0.1:{jobs.server_port}"])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert bool(ended.value.code) is is_refused, told.err
        return told

    return call


@pytest.mark.parametrize("state", ["queued", "running", "succeeded"])
def test_a_second_run_finds_the_job_of_the_first(jobs: Submissions, submit: Submit, state: str) -> None:
    first = submit()
    jobs.states[first] = state
    assert submit() == first


@pytest.mark.parametrize("state", ["failed", "cancelled", "expired", "dead"])
def test_what_ended_without_an_answer_is_tried_anew(jobs: Submissions, submit: Submit, state: str) -> None:
    tried = [submit()]
    for _ in range(2):
        jobs.states[tried[-1]] = state
        tried.append(submit())
    assert len({*tried}) == 3
    assert submit() == tried[-1]


@pytest.mark.parametrize("name", ["nowhere/vectors.npy", "."])
def test_where_nothing_can_be_written_nothing_is_handed_in(jobs: Submissions, tidegate: Tidegate, tmp_path: Path, name: str) -> None:
    (tmp_path / "texts.txt").write_text("a tide")
    told = tidegate("submit", "--model", "m", "--file", str(tmp_path / "texts.txt"), "--out", str(tmp_path / name), is_refused=True)
    assert "cannot be written: " in told.err
    assert not jobs.by_key


def test_what_a_job_failed_of_is_told_in_its_own_words(jobs: Submissions, tidegate: Tidegate, tmp_path: Path) -> None:
    jobs.shown, jobs.result = {"state": "failed"}, b'{"error": "no model"}'
    (tmp_path / "texts.txt").write_text("a tide")
    told = tidegate("submit", "--model", "m", "--file", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out.npy"), is_refused=True)
    assert "job job-0 is failed: no model\n" in told.err


def embeddings(*shape: int) -> bytes:
    numbers = [0.5] * prod(shape)
    return json.dumps({"outputs": [{"name": "EMBEDDING", "shape": shape, "data": numbers}]}).encode()


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (embeddings(1, 2, 3), "model 'm' does not answer with one embedding per text"),
        (embeddings(2, 3), "model 'm' does not answer with one embedding per text"),
        (embeddings(1, 4), "embeddings of 3 and 4 numbers"),
        (b'{"error": "a folder is gone"}', "the result of job job-1 cannot be read: a folder is gone"),
        (b"<html>", "the result of job job-1 cannot be read: <html>"),
    ],
)
def test_without_an_embedding_per_text_nothing_is_written(
    jobs: Submissions, tidegate: Tidegate, tmp_path: Path, second: bytes, told: str
) -> None:
    words = ("submit", "--model", "m", "--file", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out.npy"))
    (tmp_path / "texts.txt").write_text("\n".join(f"tide {number}" for number in range(33)))
    jobs.results = [embeddings(32, 3), second]
    assert told in tidegate(*words, is_refused=True).err
    assert not (tmp_path / "out.npy").exists()
    jobs.results = [embeddings(32, 3), embeddings(1, 3)]
    tidegate(*words)
    assert np.load(tmp_path / "out.npy").shape == (33, 3)


def test_another_webhook_is_another_job(submit: Submit) -> None:
    plain, told, elsewhere = submit(), submit("--webhook", "https://a.example/"), submit("--webhook", "https://b.example/")
    assert len({plain, told, elsewhere}) == 3
    assert submit("--webhook", "https://a.example/") == told


def test_another_class_or_output_is_another_job(submit: Submit) -> None:
    plain, cheap, written = submit(), submit("--economy"), submit("--output-to", "s3://bucket/out")
    assert len({plain, cheap, written}) == 3
    assert submit("--output-to", "s3://bucket/out") == written


def test_what_is_in_a_file_is_a_new_job_each_time(jobs: Submissions, tidegate: Tidegate) -> None:
    words = ("submit", "--model", "m", "--input-from", "s3://bucket/in.json", "--output-to", "/data/out", "--webhook", "https://a.example/")
    first, second = tidegate(*words), tidegate(*words)
    assert first.out != second.out
    given = {"input": "s3://bucket/in.json", "output": "/data/out", "webhook": "https://a.example/"}
    assert jobs.fields == [{f"tidegate-job-{name}": value for name, value in given.items()}] * 2


def test_a_place_is_sent_in_utf_8_and_what_no_field_can_have_is_refused(jobs: Submissions, tidegate: Tidegate) -> None:
    tidegate("submit", "--model", "m", "--input-from", "/data/größe")
    assert jobs.fields == [{"tidegate-job-input": "/data/größe".encode().decode("latin-1")}]
    told = tidegate("submit", "--model", "m", "--input-from", "/data/a\nb", is_refused=True)
    assert "tidegate-job-input has a character that no header field can have: '/data/a\\nb'" in told.err


@pytest.mark.parametrize("words", [(), ("--request", "a", "--input-from", "/b"), ("--input-from", "/b", "--out", "c")])
def test_a_job_has_one_input(words: tuple[str, ...], tidegate: Tidegate) -> None:
    assert "--input-from" in tidegate("submit", "--model", "m", *words, is_refused=True).err


def test_watch_tells_each_state_once_and_then_the_result(jobs: Submissions, tidegate: Tidegate) -> None:
    jobs.told = [["queued", "running"], ["running", "succeeded"]]  # the first gateway ends in between
    told = tidegate("watch", "job-1")
    assert told.err.splitlines() == ["job job-1 is queued", "job job-1 is running", "job job-1 is succeeded"]
    assert told.out == "the result"


def test_watch_waits_where_no_more_streams_may_be_open(tidegate: Tidegate) -> None:
    assert tidegate("watch", "job-1").out == "the result"


def test_show_has_a_line_for_how_far_a_delivery_is(jobs: Submissions, tidegate: Tidegate) -> None:
    webhook = {"state": "pending", "attempts": 2, "next_at": "2026-11-26T12:00:00.000+00:00", "error": "the receiver answered 500"}
    jobs.shown = {"webhook": webhook, "output": {"url": "/data/out", "state": "delivered", "attempts": 1}}
    lines = [line.strip().split(maxsplit=1) for line in tidegate("show", "job-1").out.splitlines()]
    assert ["webhook", "pending, 2 attempts, next at 2026-11-26T12:00:00.000+00:00, the receiver answered 500"] in lines
    assert ["output", "/data/out, delivered, 1 attempt"] in lines
    assert json.loads(tidegate("show", "job-1", "-o", "json").out)["webhook"] == webhook
