"""The paths of jobs on real sockets, over the real store and spool: whose jobs are whose, what is refused, what is kept."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from control_plane.core.errors import StoreUnavailable
from control_plane.frontends.common.body_budget import UNCOUNTED_BYTES
from control_plane.jobs.domain.job import Job
from control_plane.jobs.ports import Bounds, JobTotals
from tests.fakes.governance import key_text
from tests.fakes.jobs import ROOMY, job
from tests.unit.jobs.world import running
from tests.wire.gateway import INFER, gateway
from tests.wire.jobs.jobs_bench import MINE, serving


async def test_a_tenant_sees_its_own_jobs_and_no_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, mine, others, _same_tenant):
        job = await mine.submit()
        place = f"/v2/jobs/{job['id']}"
        for method, path in (("GET", place), ("GET", place + "/result"), ("DELETE", place)):
            refused = await others.ask(method, path)
            assert refused.status == 404
            unknown = (await others.ask(method, path.replace(job["id"], f"job-{'0' * 32}"))).body
            assert refused.body.replace(job["id"].encode(), b"") == unknown.replace(b"job-" + b"0" * 32, b"")
        assert orjson.loads((await others.ask("GET", "/v2/jobs")).body) == {"jobs": []}
        assert [each["id"] for each in orjson.loads((await mine.ask("GET", "/v2/jobs")).body)["jobs"]] == [job["id"]]
        assert orjson.loads((await mine.ask("GET", place)).body)["state"] == "queued"


async def test_nothing_of_a_job_is_kept_by_a_cache_on_the_way(tmp_path: Path) -> None:
    async with serving(tmp_path) as (here, mine, _, _same_tenant), running(here.runner()):
        place = f"/v2/jobs/{(await mine.submit())['id']}"
        result = await mine.ask("GET", place + "/result", prefer="wait=10")
        for answer in (result, await mine.ask("GET", place), await mine.ask("GET", "/v2/jobs")):
            assert (answer.status, b"\r\nCache-Control: no-store\r\n" in answer.head) == (200, True)


ASKED = {"content-type": "application/json", "tidegate-target": "m", "tidegate-job-expires-s": "60", "x-model-seed": "1"}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"inference-header-content-length": "10"}, id="another-framing"),
        pytest.param({"content-type": "application/octet-stream"}, id="another-type"),
        pytest.param({"content-encoding": "gzip"}, id="an-encoding"),
        pytest.param({"accept-encoding": "gzip"}, id="an-answer-in-another-encoding"),
        pytest.param({"tidegate-target": "n"}, id="another-target"),
        pytest.param({"tidegate-latency-budget-ms": "5"}, id="a-latency-budget"),
        pytest.param({"tidegate-cost-budget-units": "5"}, id="a-cost-budget"),
        pytest.param({"tidegate-timeout-ms": "5"}, id="a-timeout"),
        pytest.param({"tidegate-job-class": "economy"}, id="another-class"),
        pytest.param({"tidegate-job-expires-s": "61"}, id="another-deadline"),
        pytest.param({"x-model-seed": "2"}, id="another-parameter-of-the-model"),
    ],
)
async def test_an_idempotency_key_is_for_one_way_to_compute_the_body(tmp_path: Path, other: dict[str, str]) -> None:
    async with serving(tmp_path) as (here, mine, _, _same_tenant):
        first = await mine.submit(**ASKED, **{"idempotency-key": "k"})
        refused = await mine.ask("POST", "/v2/models/m/jobs", INFER, **(ASKED | other), **{"idempotency-key": "k"})
        assert (refused.status, b"another request" in refused.body) == (422, True)
        async with running(here.runner()):
            await here.until(lambda job: job.result is not None, first["id"])
        refused = await mine.ask("POST", "/v2/models/m/jobs", INFER, **(ASKED | other), **{"idempotency-key": "k"})
        assert refused.status == 422, "also once it has ended, and its fields are no longer kept"
        assert (await mine.submit(**ASKED, **{"idempotency-key": "k"}))["id"] == first["id"]


async def test_what_clients_make_anew_for_each_attempt_makes_no_other_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, mine, _others, _same_tenant):
        seen = {
            (await mine.submit(**ASKED, **{"idempotency-key": "k", "traceparent": each, "x-model-request-id": "same", "user-agent": each}))[
                "id"
            ]
            for each in ("00-1-1-01", "00-2-2-01")
        }
        assert len(seen) == 1


async def test_a_key_sees_no_jobs_for_models_that_it_may_not_call(tmp_path: Path) -> None:
    async with serving(tmp_path) as (here, mine, _, not_for_m):
        jobs = [await mine.submit() for _ in range(3)]
        async with running(here.runner()):
            await here.until(lambda job: job.result is not None, jobs[0]["id"])
        place = f"/v2/jobs/{jobs[0]['id']}"
        for method, path in (("GET", place), ("GET", place + "/result"), ("DELETE", place)):
            assert (await not_for_m.ask(method, path)).status == 404
        assert orjson.loads((await not_for_m.ask("GET", "/v2/jobs?limit=1")).body) == {"jobs": []}
        assert (await mine.ask("GET", place + "/result")).status == 200


async def test_jobs_for_other_models_between_its_own_cost_a_caller_no_line_of_the_list(tmp_path: Path) -> None:
    async with serving(tmp_path) as (here, _, _, not_for_m):
        own = []
        for number in range(7):
            own.append(replace(job(2 * number, model="other", submitted_s=number), deadline_s=4e9))
            await here.store.add(own[-1], ROOMY)
            await here.store.add(replace(job(2 * number + 1, submitted_s=number + 0.5), deadline_s=4e9), ROOMY)
        found, before = [], ""
        while page := orjson.loads((await not_for_m.ask("GET", f"/v2/jobs?limit=2&before={before}")).body)["jobs"]:
            found += [each["id"] for each in page]
            assert len(page) == 2 or found[-1] == own[0].id
            before = found[-1]
        assert found == [each.id for each in reversed(own)]


async def test_a_list_that_would_go_on_from_a_job_that_is_gone_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (here, mine, _, _):
        await here.store.add(theirs := replace(job(1, tenant="theirs"), deadline_s=4e9), ROOMY)
        for before in (theirs.id, job(2).id):
            refused = await mine.ask("GET", f"/v2/jobs?before={before}")
            assert (refused.status, b"is gone" in refused.body) == (409, True)


async def test_who_waits_while_the_store_is_away_hears_that_its_job_was_accepted(tmp_path: Path) -> None:
    """Told to try again it would have the job computed, and pay for it, twice."""
    async with serving(tmp_path) as (here, mine, _others, _same_tenant):

        async def away(*_: object) -> Any:
            raise StoreUnavailable("away")

        here.store.get = away  # type: ignore[method-assign]
        job = await mine.submit(Prefer="wait=1")
    assert job["state"] == "queued"


async def test_a_header_field_of_jobs_that_there_is_not_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, mine, _others, _same_tenant):
        refused = await mine.ask("POST", "/v2/models/m/jobs", INFER, Tidegate_Job_Expire_S="5")
        assert (refused.status, b"tidegate-job-expires-s" in refused.body) == (400, True)
        assert orjson.loads((await mine.ask("GET", "/v2/jobs")).body) == {"jobs": []}


async def test_an_idempotency_key_is_its_tenants_own(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, mine, others, _):
        one, again, theirs = [await each.submit(Idempotency_Key='"a"') for each in (mine, mine, others)]

        assert one["id"] == again["id"] != theirs["id"]
        other = await mine.ask("POST", "/v2/models/m/jobs", INFER + b" ", Idempotency_Key='"a"')
        assert (other.status, (await mine.ask("POST", "/v2/models/m/jobs", INFER, Idempotency_Key="a b")).status) == (422, 400)


async def test_what_the_key_may_not_infer_is_not_accepted(tmp_path: Path) -> None:
    async with serving(tmp_path) as (here, mine, _, not_for_m):
        assert (await not_for_m.ask("POST", "/v2/models/m/jobs", INFER)).status == 403
        assert (await mine.ask("POST", "/v2/models/r/jobs", INFER)).status == 403
        assert here.files() == []


async def test_no_credential_is_kept_with_a_job_and_all_that_describes_the_body_is(tmp_path: Path) -> None:
    async with serving(tmp_path) as (here, mine, _, _):
        fields = {
            "Cookie": "secret-cookie",
            "Proxy_Authorization": "Basic secret-proxy",
            "X_Api_Key": key_text(MINE),
            "X_Locale": "de",
            "Inference_Header_Content_Length": "65",
        }
        job = await mine.submit(**fields, Connection="keep-alive, Inference-Header-Content-Length, X-Hop", X_Hop="1")
        kept: Job = await here.job(job["id"])

    text = repr(kept).lower()
    assert "secret-" not in text
    assert key_text(MINE) not in text
    assert {name.lower() for name, _ in kept.headers} == {"x-locale", "inference-header-content-length"}
    assert kept.target == "/v2/models/m/infer"


async def test_header_fields_are_kept_with_a_job_up_to_a_bound_in_which_credentials_do_not_count(tmp_path: Path) -> None:
    async with serving(tmp_path) as (here, mine, _, _):
        refused = await mine.ask("POST", "/v2/models/m/jobs", INFER, X_A="a" * 4096)
        assert (refused.status, b"4099 bytes together, and may have 4096" in refused.body, here.files()) == (400, True, [])
        job = await mine.submit(X_A="a" * 4093, Cookie="c" * 4093)
        assert (await here.job(job["id"])).headers == (("X-A", "a" * 4093),)


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(Bounds(JobTotals(2, 1 << 30), JobTotals(9, 1 << 30)), id="jobs-of-tenant"),
        pytest.param(Bounds(JobTotals(9, 2 * len(INFER)), JobTotals(9, 1 << 30)), id="bytes-of-tenant"),
        pytest.param(Bounds(JobTotals(9, 1 << 30), JobTotals(2, 1 << 30)), id="jobs-in-all"),
        pytest.param(Bounds(JobTotals(9, 1 << 30), JobTotals(9, 2 * len(INFER))), id="bytes-in-all"),
    ],
)
async def test_beyond_the_bounds_jobs_are_refused_until_some_have_ended(tmp_path: Path, bounds: Bounds) -> None:
    async with serving(tmp_path, bounds=bounds) as (here, mine, others, _):
        first, _ = await mine.submit(), await mine.submit()
        refused = await mine.ask("POST", "/v2/models/m/jobs", INFER)
        assert refused.status == 429
        assert int(re.search(rb"Retry-After: (\d+)", refused.head)[1]) >= 1  # type: ignore[index]
        assert (await others.ask("POST", "/v2/models/m/jobs", INFER)).status == (429 if bounds.in_all != JobTotals(9, 1 << 30) else 202)
        assert len([name for name in here.files() if name == "body"]) <= 3, "of a job that is refused nothing is kept"

        await mine.ask("DELETE", f"/v2/jobs/{first['id']}")
        async with running(here.runner()):
            for job in await here.store.jobs_of(None, state=None, before="", limit=9):
                await here.until(lambda job: not job.is_open, job.id)
        await mine.submit()


async def test_who_repeats_himself_where_no_room_is_left_gets_his_first_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, bounds=Bounds(JobTotals(1, 1 << 30), JobTotals(9, 1 << 30))) as (here, mine, _, _):
        first = await mine.submit(Idempotency_Key="one")
        assert (await mine.submit(Idempotency_Key="one"))["id"] == first["id"]
        assert (await mine.ask("POST", "/v2/models/m/jobs", INFER, Idempotency_Key="two")).status == 429
        assert (await mine.ask("POST", "/v2/models/m/jobs", INFER + b" ", Idempotency_Key="one")).status == 422
        assert len(here.files()) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Tidegate_Job_Class": "economy"}, 202, id="class"),
        pytest.param({"Tidegate_Job_Class": "gold"}, 400, id="no-such-class"),
        pytest.param({"Tidegate_Job_Expires_S": "60"}, 202, id="expiry"),
        pytest.param({"Tidegate_Job_Expires_S": "0"}, 400, id="expired-already"),
        pytest.param({"Tidegate_Job_Expires_S": "1e3"}, 400, id="no-number"),
        pytest.param({"Tidegate_Job_Expires_S": "99999999"}, 400, id="too-long"),
        pytest.param({"Prefer": "wait=0"}, 202, id="no-wait"),
        pytest.param({"Prefer": "wait=soon"}, 202, id="a-preference-that-is-none"),
    ],
)
async def test_what_is_asked_of_a_job_is_checked(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async with serving(tmp_path) as (_, mine, _, _):
        assert (await mine.ask("POST", "/v2/models/m/jobs", INFER, **headers)).status == status


async def test_a_result_is_sent_as_it_was_computed_head_and_body(tmp_path: Path) -> None:
    async with serving(tmp_path) as (here, mine, _, _):
        job = await mine.submit()
        assert (await mine.ask("GET", f"/v2/jobs/{job['id']}/result")).status == 409
        async with running(here.runner()):
            waited = await mine.ask("GET", f"/v2/jobs/{job['id']}/result", Prefer="wait=30")
        assert (waited.status, waited.body) == (200, INFER)
        assert waited == await mine.ask("GET", f"/v2/jobs/{job['id']}/result")
        ended = orjson.loads((await mine.ask("GET", f"/v2/jobs/{job['id']}")).body)
        assert (ended["state"], ended["result"]) == ("succeeded", f"/v2/jobs/{job['id']}/result")


@pytest.mark.parametrize("origin", ["", "http://h"])
async def test_a_large_body_goes_to_disk_and_is_waited_with(tmp_path: Path, origin: str) -> None:
    async with serving(tmp_path) as (here, mine, _, _):
        body = INFER + b" " * UNCOUNTED_BYTES
        async with running(here.runner()):
            answer = await mine.ask("POST", f"{origin}/v2/models/m/jobs", body, Prefer="wait=30")
        assert (answer.status, answer.body) == (200, body)


async def test_where_jobs_are_switched_off_their_paths_do_not_exist() -> None:
    async with gateway() as it:
        for line in (b"POST /v2/models/m/jobs", b"GET /v2/jobs"):
            answer = await (await it.connect()).ask(line + b" HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
            assert answer.status == 404
            assert b"TIDEGATE_JOBS" in answer.body
