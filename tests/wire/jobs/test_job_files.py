"""Jobs whose input is in a file and whose output is written to one, from a submission on a real socket to the files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest

from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.jobs.http import JobsHttp
from control_plane.jobs.deliveries import Deliveries
from control_plane.jobs.domain.delivery import Delivery, DeliveryKind, DeliveryState, delivered
from control_plane.jobs.domain.job import Job
from control_plane.jobs.files.adapters.folder_files import FolderFiles
from control_plane.jobs.files.callers_files import CallersFiles
from control_plane.jobs.files.domain.place import Prefix, read_prefixes
from control_plane.jobs.ports import Bounds, JobTotals
from control_plane.objects.domain.tenant import Tenant
from tests.fakes.governance import api_key, governance, known_state
from tests.fakes.jobs import ROOMY
from tests.unit.jobs.world import World, running, world
from tests.wire.gateway import INFER, gateway
from tests.wire.jobs.jobs_bench import MINE, OTHERS, Caller


class Told:
    """A courier of webhooks that notes whether the output was there before."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self.found: list[tuple[str, bool]] = []

    async def deliver(self, job: Job, delivery: Delivery) -> Delivery:
        assert job.output is not None
        self.found.append((job.output.state, (self._output / job.id).exists()))
        return delivered(delivery)


class Serving:
    def __init__(
        self, here: World, mine: Caller, others: Caller, budget: BodyBudget, deliveries: Deliveries, folder: Path, read: list[Sequence[str]]
    ) -> None:
        self.here, self.mine, self.others, self.budget, self.deliveries, self.folder = here, mine, others, budget, deliveries, folder
        self.read = read

    async def deliver(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            await self.deliveries.look(tasks)

    async def ended(self, caller: Caller, body: bytes = b"", **headers: str) -> Any:
        accepted = await caller.ask("POST", "/v2/models/m/jobs", body, **headers)
        assert accepted.status == 202, accepted.body
        job_id = orjson.loads(accepted.body)["id"]
        async with running(self.here.runner()):
            await self.here.until(lambda job: job.is_charged, job_id)
        await self.deliver()
        return orjson.loads((await caller.ask("GET", f"/v2/jobs/{job_id}")).body)


@asynccontextmanager
async def serving(folder: Path, *, courier: Any = None, bounds: Bounds = ROOMY, max_input_bytes: int = 4096) -> AsyncIterator[Serving]:
    (files := folder / "files").mkdir()
    (files / "team").mkdir()
    (files / "team" / "in.json").write_bytes(INFER)
    keys = (api_key(MINE, "infer:m"), api_key(OTHERS, "infer:*", tenant="others"))
    governed = governance(known_state(keys=keys, tenants=(Tenant("team"), Tenant("others"))), authentication=True)
    async with world(folder) as here:
        read: list[Sequence[str]] = []

        class Noted(FolderFiles):
            async def read(self, path: Sequence[str], *, start: int, most: int) -> bytes:
                read.append(path)
                return await super().read(path, start=start, most=most)

        def open_store(prefix: Prefix) -> FolderFiles:
            return Noted(Path(prefix.url))

        callers = CallersFiles(read_prefixes([f"{files}/{{tenant}}"]), open_store, read_result=here.spool.read)
        couriers = {DeliveryKind.OUTPUT: callers} | ({DeliveryKind.WEBHOOK: courier} if courier is not None else {})
        deliveries = Deliveries(store=here.store, couriers=couriers, today_s=here.now_s, draw=lambda: 0.5)
        budget = BodyBudget(2 << 20)
        jobs = JobsHttp(here.jobs(bounds=bounds), files=callers, budget=budget, max_input_bytes=max_input_bytes)
        async with gateway(governed=governed, jobs=jobs) as it:
            yield Serving(here, Caller(it, MINE), Caller(it, OTHERS), budget, deliveries, files, read)
        await callers.close()


async def test_a_job_reads_its_input_and_writes_its_output(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        seen = await it.ended(it.mine, Tidegate_Job_Input=f"{it.folder}/team/in.json", Tidegate_Job_Output=f"{it.folder}/team/out/")
        result = await it.mine.ask("GET", seen["result"])
        assert result.body == INFER
        assert seen["output"] == {"url": f"{it.folder}/team/out", "state": "delivered", "attempts": 1}
        written = it.folder / "team" / "out" / seen["id"]
        assert written.read_bytes() == INFER
        assert written.with_name(written.name + ".head").read_bytes() == result.head.replace(b"Cache-Control: no-store\r\n", b"")
        assert it.budget.held_bytes == 0


async def test_a_file_for_which_there_is_no_room_is_not_read(tmp_path: Path) -> None:
    async with serving(tmp_path, bounds=Bounds(JobTotals(9, len(INFER) - 1), JobTotals(9, 1 << 30))) as it:
        source = f"{it.folder}/team/in.json"
        refused = await it.mine.ask("POST", "/v2/models/m/jobs", Tidegate_Job_Input=source)
        assert (refused.status, it.read) == (429, [])
        assert it.budget.held_bytes == 0


async def test_what_becomes_of_the_file_after_the_submission_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        job = orjson.loads((await it.mine.ask("POST", "/v2/models/m/jobs", Tidegate_Job_Input=f"{it.folder}/team/in.json")).body)
        (it.folder / "team" / "in.json").unlink()
        async with running(it.here.runner()):
            assert (await it.mine.ask("GET", f"/v2/jobs/{job['id']}/result", Prefer="wait=30")).body == INFER


async def test_files_of_others_and_those_that_lead_out_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        (it.folder / "team" / "link").symlink_to("/etc/passwd")
        (it.folder / "team" / "large").write_bytes(b" " * 4097)
        expected = {
            (it.others, f"{it.folder}/team/in.json"): 400,
            (it.mine, "/etc/passwd"): 400,
            (it.mine, f"{it.folder}/team/../others/x"): 400,
            (it.mine, f"{it.folder}/team/link"): 400,
            (it.mine, f"{it.folder}/team/missing"): 400,
            (it.mine, f"{it.folder}/team/{'a' * 300}"): 400,
            (it.mine, f"{it.folder}/team/large"): 413,
        }
        for (caller, url), status in expected.items():
            assert (await caller.ask("POST", "/v2/models/m/jobs", Tidegate_Job_Input=url)).status == status, url
        both = await it.mine.ask("POST", "/v2/models/m/jobs", INFER, Tidegate_Job_Input=f"{it.folder}/team/in.json")
        assert (both.status, b"not both" in both.body) == (400, True)
        assert (await it.mine.ask("POST", "/v2/models/m/jobs", INFER, Tidegate_Job_Output=f"{it.folder}/others/out")).status == 400
        assert await it.here.store.jobs_of(None, state=None, before="", limit=9) == []
        assert it.budget.held_bytes == 0


async def test_where_no_place_is_allowed_they_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as here, gateway(jobs=JobsHttp(here.jobs())) as it:
        for name in (b"input", b"output"):
            head = b"POST /v2/models/m/jobs HTTP/1.1\r\nHost: h\r\ntidegate-job-%b: /data/a\r\nContent-Length: 0\r\n\r\n" % name
            answer = await (await it.connect()).ask(head)
            assert (answer.status, b"TIDEGATE_JOBS_STORES" in answer.body) == (400, True)


async def test_an_output_that_cannot_be_written_is_tried_again_and_the_webhook_waits_for_it(tmp_path: Path) -> None:
    out = tmp_path / "files" / "team" / "out"
    told = Told(out)
    async with serving(tmp_path, courier=told) as it:
        out.symlink_to(tmp_path)
        submitted = await it.here.submit(output=Delivery(str(out)), webhook=Delivery("https://a.example/"))
        async with running(it.here.runner()):
            await it.here.until(lambda job: job.is_charged, submitted.id)
        await it.deliver()
        found = await it.here.job(submitted.id)
        assert found.output is not None
        assert (found.output.state, found.output.error, told.found) == (DeliveryState.PENDING, "it cannot be written there", [])
        out.unlink()
        it.here.clock_s = found.output.due_s
        await it.deliver()
        await it.deliver()
        assert told.found == [("delivered", True)]


async def test_of_a_job_without_a_result_only_the_webhook_is_delivered(tmp_path: Path) -> None:
    told = Told(tmp_path)
    async with serving(tmp_path, courier=told) as it:
        submitted = await it.here.submit(output=Delivery(f"{it.folder}/team/out"), webhook=Delivery("https://a.example/"))
        assert (await it.mine.ask("DELETE", f"/v2/jobs/{submitted.id}")).status == 200
        await it.deliver()
        assert told.found == [("waiting", False)]


@pytest.mark.parametrize("size", [0, 4096])
async def test_an_input_of_any_size_within_the_limit(tmp_path: Path, size: int) -> None:
    async with serving(tmp_path) as it:
        (it.folder / "team" / "größe.json").write_bytes(b"x" * size)
        seen = await it.ended(it.mine, Tidegate_Job_Input=f"{it.folder}/team/größe.json")
        assert seen["size_bytes"] == size


async def test_a_large_input_is_read_in_pieces_and_needs_memory_for_few_of_them(tmp_path: Path) -> None:
    async with serving(tmp_path, max_input_bytes=4 << 20) as it:
        content = bytes(range(256)) * 12_289  # 3 MiB and a bit, more than all bodies may have
        (it.folder / "team" / "large").write_bytes(content)
        seen = await it.ended(it.mine, Tidegate_Job_Input=f"{it.folder}/team/large")
        assert (seen["size_bytes"], len(it.read), it.budget.held_bytes) == (len(content), 4, 0)
        (job,) = await it.here.store.jobs_of(None, state=None, before="", limit=9)
        assert job.body.sha256 == sha256(content).hexdigest()
