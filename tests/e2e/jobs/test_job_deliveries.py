"""What jobs come to, delivered by real processes: to a webhook's receiver and to a folder, whoever is killed in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from standardwebhooks import Webhook as Verifier

from control_plane.jobs.domain.delivery import LEASE_S
from tests.e2e.conftest import MODELS, Start
from tests.e2e.jobs.job_calls import ask, ended, result, seconds, submit
from tests.e2e.tidegate import COMPLETE, LONG_S, run_cli, wait_for
from tests.http_server import AskedRequest, http_server
from tests.s3_server import BUCKET, SECRET, s3_server


class Receiver:
    """A receiver of webhooks, which answers with `status`."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 204
        self.requests: list[tuple[dict[str, str], bytes]] = []

    def answer(self, asked: AskedRequest) -> None:
        self.requests.append(({name.lower(): value for name, value in asked.headers.items()}, asked.body))
        asked.answer(self.status)


@contextmanager
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    with http_server(made.answer) as url:
        made.url = f"{url}/hook"
        yield made


@pytest.mark.timeout(600)
def test_a_job_is_told_after_the_gateway_was_killed_between_its_end_and_the_delivery(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_JOBS_WEBHOOK_PLAINTEXT", "true")
    monkeypatch.setenv("TIDEGATE_JOBS_WEBHOOK_NETWORKS", "127.0.0.0/8")
    (files := tmp_path / "files").mkdir()
    (files / "in.json").write_bytes(seconds(0.01))
    monkeypatch.setenv("TIDEGATE_JOBS_STORES", str(files))
    flags = ("--model-repository", str(MODELS), COMPLETE, "--load", "slow")
    with receiver() as there:
        first = start(tmp_path / "state", *flags)
        refused = ask(first, "POST", "/v2/models/slow/jobs", seconds(0.01), Tidegate_Job_Webhook=there.url)
        assert (refused.status, b"an administrator makes one" in refused.body) == (400, True)
        made = run_cli("webhooks", "create", "--state-dir", str(first.state_dir))
        secret = made.stdout.strip()
        assert secret.startswith("whsec_"), made.stderr
        assert secret not in run_cli("webhooks", "list", "--state-dir", str(first.state_dir)).stdout
        there.status = 500
        fields = {"Tidegate_Job_Webhook": there.url, "Tidegate_Job_Output": f"{files}/out", "Tidegate_Job_Input": f"{files}/in.json"}

        wait_for(lambda: ask(first, "POST", "/v2/models/slow/jobs", b"", **fields).status == 202, what="the secret")
        wait_for(lambda: there.requests, what="the first attempt")
        first.kill()
        there.status = 204
        again = start(tmp_path / "state", *flags)

        job_id = json.loads(there.requests[0][1])["data"]["id"]
        # One that was killed before it had noted the answer still has the attempt, for so long.
        wait_for(lambda: ended(again, job_id)["webhook"]["state"] == "delivered", what="the delivery", timeout_s=LEASE_S + LONG_S)
        seen = ended(again, job_id)
        assert (seen["state"], seen["output"]["state"], seen["webhook"]["attempts"] >= 2) == ("succeeded", "delivered", True)
        assert len({fields["webhook-id"] for fields, _ in there.requests}) == 1
        message = Verifier(secret).verify(there.requests[-1][1], there.requests[-1][0])
        assert (message["type"], message["data"]["result"]) == ("job.succeeded", f"/v2/jobs/{job_id}/result")
        assert (files / "out" / job_id).read_bytes() == result(again, job_id).body
        events = ask(again, "GET", f"/v2/jobs/{job_id}/events")
        assert b"event: succeeded\n" in events.body
        submitted = submit(again, "slow", seconds(0.01), Tidegate_Job_Webhook=there.url)
        wait_for(lambda: ended(again, submitted)["webhook"]["state"] == "delivered", what="the second job's")
        for process in (first, again):
            assert secret not in process.said()


def test_jobs_whose_input_and_output_are_in_s3_outlive_a_gateway_that_is_killed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second bucket is made late, so that the first attempt at the output fails."""
    flags = ("--model-repository", str(MODELS), COMPLETE, "--load", "slow")
    with s3_server() as s3:
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TIDEGATE_JOBS_STORES", f"s3://{BUCKET}/jobs,s3://late/out")
        monkeypatch.setenv("TIDEGATE_JOBS_RUN", "false")
        s3.put("jobs/in.json", seconds(0.01))
        first = start(tmp_path / "state", *flags)
        fields = {"Tidegate_Job_Input": f"s3://{BUCKET}/jobs/in.json", "Tidegate_Job_Output": "s3://late/out/a"}
        job_id = submit(first, "slow", b"", **fields)
        too_late = submit(first, "slow", b"", **fields, Tidegate_Job_Expires_S="1")
        missing = ask(first, "POST", "/v2/models/slow/jobs", b"", Tidegate_Job_Input=f"s3://{BUCKET}/jobs/none")
        assert (missing.status, b"no such input file" in missing.body) == (400, True)
        first.kill()
        s3.delete("jobs/in.json")
        monkeypatch.setenv("TIDEGATE_JOBS_RUN", "true")
        again = start(tmp_path / "state", *flags)

        assert ended(again, too_late)["state"] == "expired"
        assert ended(again, job_id)["state"] == "succeeded"
        wait_for(lambda: ended(again, job_id)["output"].get("error"), what="the first attempt at the output")
        s3.client.create_bucket(Bucket="late")
        wait_for(lambda: ended(again, job_id)["output"]["state"] == "delivered", what="the output")
        written = {each["Key"] for each in s3.client.list_objects_v2(Bucket="late")["Contents"]}
        assert written == {f"out/a/{job_id}", f"out/a/{job_id}.head"}
        assert s3.client.get_object(Bucket="late", Key=f"out/a/{job_id}")["Body"].read() == result(again, job_id).body
        assert SECRET not in again.said()
