"""`tidegate jobs submit` against a stand-in of the data port: which jobs a second run finds, and which it makes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from control_plane.cli import main

Submit = Callable[..., str]


class Submissions(ThreadingHTTPServer):
    """A data port that knows jobs by their idempotency keys, and each job by its state."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.by_key: dict[str, str] = {}
        self.states: dict[str, str] = {}


class _Answer(BaseHTTPRequestHandler):
    server: Submissions

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        job = self.server.by_key.setdefault(self.headers["idempotency-key"], f"job-{len(self.server.by_key)}")
        body = json.dumps({"id": job, "state": self.server.states.setdefault(job, "queued")}).encode()
        self.send_response(202)
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


def test_another_webhook_is_another_job(submit: Submit) -> None:
    plain, told, elsewhere = submit(), submit("--webhook", "https://a.example/"), submit("--webhook", "https://b.example/")
    assert len({plain, told, elsewhere}) == 3
    assert submit("--webhook", "https://a.example/") == told
