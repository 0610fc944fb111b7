"""Asynchronous jobs against the real Triton: accepted at once, computed once, answered as `infer` answers, whoever is killed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tritonclient.http as triton

from tests.e2e.conftest import MODELS, Start
from tests.e2e.jobs.job_calls import ask, ended, result, seconds, state, submit, texts
from tests.e2e.tidegate import COMPLETE, Tidegate, run_cli, wait_for


def test_the_result_is_what_infer_would_have_said_byte_for_byte(tidegate: Tidegate) -> None:
    body = texts("How do I reset my password?", "東京")
    path = "/v2/models/text_embedding/infer"
    ask(tidegate, "POST", path, body)  # may fill a cache, which has a field of its own in the head
    synchronous = ask(tidegate, "POST", path, body)

    job = submit(tidegate, "text_embedding", body)

    found = ended(tidegate, job)
    assert (found["state"], found["status"], found["attempts"], found["model"]) == ("succeeded", 200, 1, "text_embedding")
    same = result(tidegate, job)
    assert (same.status, same.body) == (synchronous.status, synchronous.body)
    assert same.headers.pop("cache-control") == "no-store"
    assert same.headers.keys() == synchronous.headers.keys()


def test_binary_tensors_and_the_official_clients_reading_of_them(tidegate: Tidegate) -> None:
    tensor = triton.InferInput("SECONDS", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[0.01]], dtype=np.float32))
    body, json_bytes = triton.InferenceServerClient.generate_request_body(
        [tensor], outputs=[triton.InferRequestedOutput("SLEPT", binary_data=True)]
    )

    job = submit(tidegate, "slow", body, Inference_Header_Content_Length=str(json_bytes))

    ended(tidegate, job)
    answer = result(tidegate, job)
    length = int(answer.headers["inference-header-content-length"])
    read = triton.InferenceServerClient.parse_response_body(answer.body, header_length=length)
    assert read.as_numpy("SLEPT").tolist() == [[np.float32(0.01)]]


def test_a_mistake_is_answered_as_infer_answers_it_and_not_tried_again(tidegate: Tidegate) -> None:
    synchronous = ask(tidegate, "POST", "/v2/models/slow/infer", texts("a"))

    job = submit(tidegate, "slow", texts("a"))

    found = ended(tidegate, job)
    assert (found["state"], found["attempts"]) == ("failed", 1)
    assert (result(tidegate, job).status, result(tidegate, job).body) == (synchronous.status, synchronous.body)


def test_a_job_for_a_model_that_there_is_not_is_refused_as_infer_refuses_it(tidegate: Tidegate) -> None:
    refused, synchronous = (ask(tidegate, "POST", f"/v2/models/no_such_model/{call}", texts("a")) for call in ("jobs", "infer"))
    assert (refused.status, refused.json) == (synchronous.status, synchronous.json)


def test_a_caller_who_prefers_to_wait_gets_the_answer_itself_or_the_job(tidegate: Tidegate) -> None:
    quick = ask(tidegate, "POST", "/v2/models/slow/jobs", seconds(0.05), Prefer="respond-async, wait=60")
    assert (quick.status, quick.headers["preference-applied"]) == (200, "wait=60")
    assert quick.json["outputs"][0]["name"] == "SLEPT"

    slow = ask(tidegate, "POST", "/v2/models/slow/jobs", seconds(3.0), Prefer="wait=1")
    assert slow.status == 202
    assert result(tidegate, slow.json["id"]).status == 409
    assert ask(tidegate, "DELETE", f"/v2/jobs/{slow.json['id']}").json["state"] == "cancelled"


def test_an_idempotency_key_makes_one_job(tidegate: Tidegate) -> None:
    with ThreadPoolExecutor(4) as callers:
        asking = [callers.submit(ask, tidegate, "POST", "/v2/models/slow/jobs", seconds(0.01), Idempotency_Key="one") for _ in range(8)]
        replies = [each.result() for each in asking]

    assert {reply.status for reply in replies} <= {202, 409}
    assert len({reply.json["id"] for reply in replies if reply.status == 202}) == 1
    other = ask(tidegate, "POST", "/v2/models/slow/jobs", seconds(0.02), Idempotency_Key="one")
    assert other.status == 422
    assert ask(tidegate, "POST", "/v2/models/slow/jobs", seconds(0.01), Idempotency_Key="").status == 400


def test_what_was_accepted_survives_the_kill_of_who_computes_it(start: Start, tmp_path: Path) -> None:
    """Killed while one job runs and others wait, the gateway starts anew and does each once; usage says so."""
    flags = ("--model-repository", str(MODELS), COMPLETE, "--load", "slow")
    first = start(tmp_path, *flags)
    running = submit(first, "slow", seconds(20.0))
    wait_for(lambda: state(first, running) == "running", what="the first job")
    waiting = [submit(first, "slow", seconds(0.01) + b" " * size) for size in (0, 0, 0, 40_000, 40_000)]  # in records and in the spool
    cancelled = submit(first, "slow", seconds(0.01))
    assert ask(first, "DELETE", f"/v2/jobs/{cancelled}").json["state"] == "cancelled"
    first.kill()

    again = start(tmp_path, *flags)

    assert ask(again, "DELETE", f"/v2/jobs/{running}").json["state"] == "cancelled"
    for job in waiting:
        found = ended(again, job)
        assert (found["state"], found["attempts"]) == ("succeeded", 1)
        assert result(again, job).json["outputs"][0]["name"] == "SLEPT"
    assert state(again, cancelled) == "cancelled"
    assert result(again, cancelled).status == 409

    def only_bodies_are_left() -> bool:
        """Those of the two large ones, which stay for a while in case the store is set back."""
        return sorted(path.parent.name for path in (tmp_path / "spool").glob("??/*/*")) == sorted(waiting[-2:])

    wait_for(only_bodies_are_left, what="the end of results of nobody and partial files", timeout_s=30.0)


def test_a_job_that_is_cancelled_while_it_runs_ends_at_once(tidegate: Tidegate) -> None:
    job = submit(tidegate, "slow", seconds(2.0))
    wait_for(lambda: state(tidegate, job) == "running", what="the job")

    assert ask(tidegate, "DELETE", f"/v2/jobs/{job}").json["state"] == "cancelled"

    wait_for(lambda: ended(tidegate, submit(tidegate, "slow", seconds(0.01)))["state"] == "succeeded", what="the next job")
    assert state(tidegate, job) == "cancelled"


def test_jobs_are_listed_and_unknown_ones_do_not_exist(tidegate: Tidegate) -> None:
    made = [submit(tidegate, "slow", seconds(0.01)) for _ in range(3)]
    for job in made:
        ended(tidegate, job)

    listed = [each["id"] for each in ask(tidegate, "GET", "/v2/jobs?state=succeeded&limit=3").json["jobs"]]
    after = [each["id"] for each in ask(tidegate, "GET", f"/v2/jobs?before={listed[0]}&limit=2").json["jobs"]]

    assert sorted(listed) == sorted(made)
    assert after == listed[1:]
    assert ask(tidegate, "GET", f"/v2/jobs/job-{'0' * 32}").status == 404
    assert ask(tidegate, "GET", "/v2/jobs?state=nonsense").status == 400


def test_the_command_line_hands_in_follows_and_finds_again(tidegate: Tidegate, tmp_path: Path) -> None:
    where = ("--state-dir", str(tidegate.state_dir))
    lines = [f"text number {number}" for number in range(40)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    handing = ("jobs", "submit", "--model", "text_embedding", "--file", str(tmp_path / "texts.txt"), *where)

    ids = run_cli(*handing).stdout.split()
    written = run_cli(*handing, "--out", str(tmp_path / "vectors.npy"))

    assert (len(ids), written.returncode) == (2, 0), written.stderr
    vectors = np.load(tmp_path / "vectors.npy")
    assert vectors.shape == (40, 384)
    same = json.loads(ask(tidegate, "POST", "/v2/models/text_embedding/infer", texts(lines[39])).body)["outputs"]
    data = next(each["data"] for each in same if each["name"] == "EMBEDDING")
    assert float(np.dot(vectors[39], np.array(data))) > 0.999
    listed = run_cli("jobs", "list", "--limit", "2", *where).stdout
    assert all(job in listed for job in ids), "the second run found the jobs of the first"
    assert "succeeded" in run_cli("jobs", "show", ids[0], *where).stdout
    assert json.loads(run_cli("jobs", "watch", ids[0], *where).stdout)["model_name"] == "text_embedding"
    assert "is succeeded" in run_cli("jobs", "cancel", ids[0], *where).stderr
    assert run_cli("jobs", "dead", "list", *where).returncode == 0
    refused = run_cli("jobs", "dead", "requeue", ids[0], *where)
    assert (refused.returncode, "not dead" in refused.stderr) == (1, True)
