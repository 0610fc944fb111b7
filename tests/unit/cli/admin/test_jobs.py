"""`tidegate jobs submit` against a stand-in of the data port: which jobs a second run finds, and which it makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import numpy as np
import pytest

from tests.http_server import AskedRequest, http_server
from tests.unit.cli.command import CommandResult, Tidegate

Submit = Callable[..., str]
Call = Callable[..., CommandResult]


class Submissions:
    """A data port that knows jobs by their idempotency keys, and each job by its state."""

    def __init__(self) -> None:
        self.url = ""
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

    def answer(self, asked: AskedRequest) -> None:
        if asked.command == "POST":
            self.fields.append({name: value for name, value in asked.headers.items() if name.startswith("tidegate-job-")})
            job = self.by_key.setdefault(asked.headers["idempotency-key"], f"job-{len(self.by_key)}")
            asked.answer(202, {"id": job, "state": self.states.setdefault(job, "queued")})
        elif asked.path.endswith("/events") and self.told:
            events = (f"event: {each}\ndata: {json.dumps(_job(each))}\n\n" for each in self.told.pop(0))
            asked.answer(200, "".join(events).encode())
        elif asked.path.endswith("/events"):
            asked.answer(429, {"error": "too many"})
        elif asked.path.endswith("/result"):
            asked.answer(200, self.results.pop(0) if self.results else self.result)
        else:
            asked.answer(200, _job("succeeded") | self.shown)


def _job(state: str) -> dict[str, object]:
    return {"id": "job-1", "state": state} | ({"result": "/v2/jobs/job-1/result"} if state == "succeeded" else {})


@pytest.fixture
def jobs() -> Iterator[Submissions]:
    submissions = Submissions()
    with http_server(submissions.answer) as submissions.url:
        yield submissions


@pytest.fixture
def submit(call: Call, tmp_path: Path) -> Submit:
    """Hand in one request by the command line, and return the id that it prints."""
    (tmp_path / "request.json").write_text("{}")
    return lambda *options: call("submit", "--model", "m", "--request", tmp_path / "request.json", *options).out.strip()


@pytest.fixture
def call(jobs: Submissions, tidegate: Tidegate) -> Call:
    """Call `tidegate jobs`; it must end well, unless it is to be refused."""

    def call(*words: object, is_refused: bool = False) -> CommandResult:
        told = tidegate("jobs", *words, "--url", jobs.url)
        assert bool(told.status) is is_refused, told.err
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
def test_where_nothing_can_be_written_nothing_is_handed_in(jobs: Submissions, call: Call, tmp_path: Path, name: str) -> None:
    (tmp_path / "texts.txt").write_text("a tide")
    told = call("submit", "--model", "m", "--file", str(tmp_path / "texts.txt"), "--out", str(tmp_path / name), is_refused=True)
    assert "cannot be written: " in told.err
    assert not jobs.by_key


def test_what_a_job_failed_of_is_told_in_its_own_words(jobs: Submissions, call: Call, tmp_path: Path) -> None:
    jobs.shown, jobs.result = {"state": "failed"}, b'{"error": "no model"}'
    (tmp_path / "texts.txt").write_text("a tide")
    told = call("submit", "--model", "m", "--file", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out.npy"), is_refused=True)
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
def test_without_an_embedding_per_text_nothing_is_written(jobs: Submissions, call: Call, tmp_path: Path, second: bytes, told: str) -> None:
    words = ("submit", "--model", "m", "--file", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out.npy"))
    (tmp_path / "texts.txt").write_text("\n".join(f"tide {number}" for number in range(33)))
    jobs.results = [embeddings(32, 3), second]
    assert told in call(*words, is_refused=True).err
    assert not (tmp_path / "out.npy").exists()
    jobs.results = [embeddings(32, 3), embeddings(1, 3)]
    call(*words)
    assert np.load(tmp_path / "out.npy").shape == (33, 3)


def test_another_webhook_is_another_job(submit: Submit) -> None:
    plain, told, elsewhere = submit(), submit("--webhook", "https://a.example/"), submit("--webhook", "https://b.example/")
    assert len({plain, told, elsewhere}) == 3
    assert submit("--webhook", "https://a.example/") == told


def test_another_class_or_output_is_another_job(submit: Submit) -> None:
    plain, cheap, written = submit(), submit("--economy"), submit("--output-to", "s3://bucket/out")
    assert len({plain, cheap, written}) == 3
    assert submit("--output-to", "s3://bucket/out") == written


def test_what_is_in_a_file_is_a_new_job_each_time(jobs: Submissions, call: Call) -> None:
    words = ("submit", "--model", "m", "--input-from", "s3://bucket/in.json", "--output-to", "/data/out", "--webhook", "https://a.example/")
    first, second = call(*words), call(*words)
    assert first.out != second.out
    given = {"input": "s3://bucket/in.json", "output": "/data/out", "webhook": "https://a.example/"}
    assert jobs.fields == [{f"tidegate-job-{name}": value for name, value in given.items()}] * 2


def test_a_place_is_sent_in_utf_8_and_what_no_field_can_have_is_refused(jobs: Submissions, call: Call) -> None:
    call("submit", "--model", "m", "--input-from", "/data/größe")
    assert jobs.fields == [{"tidegate-job-input": "/data/größe".encode().decode("latin-1")}]
    told = call("submit", "--model", "m", "--input-from", "/data/a\nb", is_refused=True)
    assert "tidegate-job-input has a character that no header field can have: '/data/a\\nb'" in told.err


@pytest.mark.parametrize("words", [(), ("--request", "a", "--input-from", "/b"), ("--input-from", "/b", "--out", "c")])
def test_a_job_has_one_input(words: tuple[str, ...], call: Call) -> None:
    assert "--input-from" in call("submit", "--model", "m", *words, is_refused=True).err


def test_watch_tells_each_state_once_and_then_the_result(jobs: Submissions, call: Call) -> None:
    jobs.told = [["queued", "running"], ["running", "succeeded"]]  # the first gateway ends in between
    told = call("watch", "job-1")
    assert told.err.splitlines() == ["job job-1 is queued", "job job-1 is running", "job job-1 is succeeded"]
    assert told.out == "the result"


def test_watch_waits_where_no_more_streams_may_be_open(call: Call) -> None:
    assert call("watch", "job-1").out == "the result"


def test_show_has_a_line_for_how_far_a_delivery_is(jobs: Submissions, call: Call) -> None:
    webhook = {"state": "pending", "attempts": 2, "next_at": "2026-11-26T12:00:00.000+00:00", "error": "the receiver answered 500"}
    jobs.shown = {"webhook": webhook, "output": {"url": "/data/out", "state": "delivered", "attempts": 1}}
    lines = [line.strip().split(maxsplit=1) for line in call("show", "job-1").out.splitlines()]
    assert ["webhook", "pending, 2 attempts, next at 2026-11-26T12:00:00.000+00:00, the receiver answered 500"] in lines
    assert ["output", "/data/out, delivered, 1 attempt"] in lines
    assert json.loads(call("show", "job-1", "-o", "json").out)["webhook"] == webhook
