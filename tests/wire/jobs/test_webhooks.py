"""Webhooks from a submission on a real socket to a receiver on another: what the receiver gets, and what is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from standardwebhooks import Webhook as Verifier

from control_plane.batches.adapters.folder_shelf import FolderShelf
from control_plane.batches.batches import Batches
from control_plane.batches.files import Files
from control_plane.frontends.batches.http import BatchesHttp
from control_plane.frontends.jobs.http import JobsHttp
from control_plane.jobs.deliveries import Deliveries
from control_plane.jobs.domain.delivery import DeliveryKind
from control_plane.jobs.domain.job import JobState
from control_plane.jobs.webhooks.adapters.guarded_post import GuardedPost
from control_plane.jobs.webhooks.domain.url import UrlRules, read_networks
from control_plane.jobs.webhooks.secrets import WebhookSecrets
from control_plane.jobs.webhooks.sender import WebhookSender
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from control_plane.objects.objects import Objects
from tests.fakes.batch_lines import AnsweringLines
from tests.fakes.governance import api_key, governance, known_state
from tests.fakes.jobs import ROOMY
from tests.fakes.stores.state_store import FakeStateStore
from tests.unit.jobs.webhooks.adapters.guarded_post_bench import Names, Receiver, never, receiver
from tests.unit.jobs.world import CALLER, World, running, world
from tests.wire.gateway import Answer, gateway
from tests.wire.jobs.jobs_bench import MINE, Caller

RULES = UrlRules(plaintext=True, networks=read_networks(["127.0.0.1/32"]))


class Serving:
    """A gateway whose jobs run, and which delivers as `deliver` says."""

    def __init__(
        self, here: World, mine: Caller, secrets: WebhookSecrets, known: ObjectMirror, deliveries: Deliveries, batches: Batches
    ) -> None:
        self.here, self.mine, self.secrets, self._known, self._deliveries = here, mine, secrets, known, deliveries
        self.batches = batches

    async def new_secret(self) -> str:
        made = await self.secrets.create("team")
        await self._known.start()
        return made.secret

    async def delete_secret(self, secret: str) -> None:
        (found,) = [each for each in await self.secrets.list_all() if each.secret == secret]
        await self.secrets.delete(found.id)
        await self._known.start()

    async def deliver(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            await self._deliveries.look(tasks)

    async def told(self, url: str) -> Any:
        """Submit a job, wait for its end, deliver once, and return what its caller sees of it."""
        job = await self.mine.submit(Tidegate_Job_Webhook=url)
        await self.here.until(lambda job: not job.is_open, job["id"])
        await self.deliver()
        return orjson.loads((await self.mine.ask("GET", f"/v2/jobs/{job['id']}")).body)


@asynccontextmanager
async def serving(folder: Path, names: Names | None = None, *, timeout_s: float = 60.0) -> AsyncIterator[Serving]:
    governed = governance(known_state(keys=(api_key(MINE, "infer:m"),), tenants=(Tenant("team"),)), authentication=True)
    state = FakeStateStore()
    await Objects(state).put(Tenant("team"))
    known = ObjectMirror(state)
    await known.start()
    async with world(folder) as here:
        here.clock_s = time.time()
        post = GuardedPost(RULES, names or Names(["127.0.0.1"]), timeout_s=timeout_s)
        secrets_of = known.webhook_secrets_of
        webhooks = WebhookSender(index=here.store.deliveries, post=post, rules=RULES, secrets_of=secrets_of, today_s=here.now_s)
        deliveries = Deliveries(store=here.store, couriers={DeliveryKind.WEBHOOK: webhooks}, today_s=here.now_s)
        jobs = JobsHttp(here.jobs(), webhooks=webhooks)
        here.compute = AnsweringLines()
        shelf = FolderShelf(folder / "files")
        files = Files(shelf, max_bytes=1 << 20)
        limits: dict[str, Any] = {"bounds": ROOMY, "policy": here.policy, "keep_s": 1e6, "max_open": 10}
        batches = Batches(here.backend(), shelf=shelf, files=files, **limits, today_s=here.now_s)
        async with (
            gateway(governed=governed, jobs=jobs, batches=BatchesHttp(files, batches, webhooks=webhooks)) as it,
            running(here.runner()),
        ):
            yield Serving(here, Caller(it, MINE), WebhookSecrets(state), known, deliveries, batches)
        await shelf.close()


def verified(request: bytes, secret: str) -> Any:
    """The message of a request, by the official verifier."""
    head, _, body = request.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    return Verifier(secret).verify(body, fields)


async def test_a_receiver_can_verify_what_it_is_told_also_while_its_secret_is_changed(tmp_path: Path) -> None:
    async with serving(tmp_path) as it, receiver() as there:
        url = f"http://receiver.example:{there.port}/hook"
        old = await it.new_secret()
        seen = await it.told(url)
        assert (seen["state"], seen["webhook"]) == ("succeeded", {"state": "delivered", "attempts": 1})
        message = verified(there.requests[0], old)
        assert (message["type"], message["data"]["result"]) == ("job.succeeded", seen["result"])

        new = await it.new_secret()
        await it.told(url)
        assert verified(there.requests[1], old)["type"] == verified(there.requests[1], new)["type"] == "job.succeeded"
        await it.delete_secret(old)
        await it.told(url)
        assert verified(there.requests[2], new)
        with pytest.raises(Exception, match="No matching signature"):
            verified(there.requests[2], old)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        pytest.param("http://10.0.0.1/", "TIDEGATE_JOBS_WEBHOOK_NETWORKS", id="private"),
        pytest.param("http://[::ffff:127.0.0.1]/", "public Internet", id="mapped"),
        pytest.param("http://169.254.169.254/latest/meta-data/", "public Internet", id="metadata"),
        pytest.param("http://user:pass@receiver.example/", "no user", id="userinfo"),
        pytest.param("ftp://receiver.example/", "https://", id="scheme"),
        pytest.param("http://0x7f.1/", "no host", id="another-spelling"),
        pytest.param("", "visible", id="nothing"),
    ],
)
async def test_a_url_that_leads_inside_is_refused_at_once(tmp_path: Path, url: str, why: str) -> None:
    async with serving(tmp_path) as it:
        await it.new_secret()
        refused = await it.mine.ask("POST", "/v2/models/m/jobs", b"{}", Tidegate_Job_Webhook=url)
        assert refused.status == 400
        assert why.encode() in refused.body
        assert await it.here.store.jobs_of(None, state=None, before="", limit=9) == []


async def test_a_tenant_without_a_secret_and_a_gateway_without_webhooks_refuse_them(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        refused = await it.mine.ask("POST", "/v2/models/m/jobs", b"{}", Tidegate_Job_Webhook="http://receiver.example/")
        assert (refused.status, b"tidegate webhooks create" in refused.body) == (400, True)
        assert (await it.mine.ask("POST", "/v2/models/m/jobs", b"{}")).status == 202


async def test_a_name_that_leads_inside_is_told_nothing_and_its_caller_sees_why(tmp_path: Path) -> None:
    async with serving(tmp_path, Names(["127.0.0.1", "10.0.0.1"])) as it, receiver() as there:
        await it.new_secret()
        seen = await it.told(f"http://rebinding.example:{there.port}/")
        assert (seen["state"], seen["webhook"]["state"], there.connections) == ("succeeded", "pending", 0)
        assert "no address of the public Internet" in seen["webhook"]["error"]


async def test_a_redirect_is_no_delivery(tmp_path: Path) -> None:
    async with receiver() as inside:
        moved = f"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:{inside.port}/\r\n\r\n".encode()
        async with serving(tmp_path) as it, receiver(moved) as there:
            await it.new_secret()
            seen = await it.told(f"http://receiver.example:{there.port}/")
            assert seen["webhook"] | {"next_at": ""} == {
                "state": "pending",
                "attempts": 1,
                "next_at": "",
                "error": "the receiver answered 307",
            }
            assert (there.connections, inside.connections) == (1, 0)


async def test_after_410_nothing_more_is_sent(tmp_path: Path) -> None:
    async with serving(tmp_path) as it, receiver(b"HTTP/1.1 410 Gone\r\n\r\n") as there:
        await it.new_secret()
        url = f"http://receiver.example:{there.port}/"
        assert [(await it.told(url))["webhook"]["state"] for _ in range(3)] == ["gone"] * 3
        assert there.connections == 1


async def test_a_frozen_receiver_delays_no_job_and_no_other_webhook(tmp_path: Path) -> None:
    async with serving(tmp_path, timeout_s=600.0) as it, receiver(never) as frozen, receiver() as there:
        await it.new_secret()
        first = await it.mine.submit(Tidegate_Job_Webhook=f"http://receiver.example:{frozen.port}/")
        await it.here.until(lambda job: not job.is_open, first["id"])
        stuck = asyncio.get_running_loop().create_task(it.deliver())
        await _until(lambda: _has(frozen, 1))
        assert (await it.told(f"http://receiver.example:{there.port}/"))["webhook"]["state"] == "delivered"
        stuck.cancel()
        await asyncio.wait([stuck])
        found = await it.here.job(first["id"])
        assert found.state is JobState.SUCCEEDED
        assert found.webhook is not None
        assert found.webhook.is_pending


async def _has(there: Receiver, count: int) -> bool:
    return len(there.requests) >= count


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.005)


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}}\r\n--b--\r\n'
)


async def create_batch(it: Serving, **headers: str) -> Answer:
    file = await it.mine.ask("POST", "/v1/files", FORM, Content_Type="multipart/form-data; boundary=b")
    body = {"input_file_id": orjson.loads(file.body)["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
    return await it.mine.ask("POST", "/v1/batches", orjson.dumps(body), **headers)


async def test_a_batch_is_told_of_once_it_has_ended(tmp_path: Path) -> None:
    async with receiver() as there, serving(tmp_path) as it:
        secret = await it.new_secret()
        batch = orjson.loads((await create_batch(it, Tidegate_Batch_Webhook=f"http://a.example:{there.port}/hook")).body)
        while (await it.batches.progress(made := (await it.batches.batches_of(CALLER, after="", limit=1))[0])).ended is None:
            await it.batches.advance()
        await it.deliver()
        assert there.requests == [], "not in the moment before its end is written"
        it.here.clock_s += 5.0
        await it.deliver()
        told = verified(there.requests[0], secret)
        assert (told["type"], told["data"]) == ("batch.completed", {"id": batch["id"]})
        assert made.id == batch["id"]


@pytest.mark.parametrize(
    ("field", "url", "said"),
    [
        pytest.param("Tidegate_Batch_Webhook", "https://10.0.0.1/", b"public Internet", id="inside"),
        pytest.param("Tidegate_Batch_Webhook", "https://a.example/", b"no secret", id="no-secret"),
        pytest.param("Tidegate_Job_Webhook", "https://a.example/", b"tidegate-batch-webhook", id="field-of-jobs"),
    ],
)
async def test_a_webhook_that_cannot_be_told_makes_no_batch(tmp_path: Path, field: str, url: str, said: bytes) -> None:
    async with serving(tmp_path) as it:
        refused = await create_batch(it, **{field: url})
        assert (refused.status, said in refused.body) == (400, True), refused
        assert await it.batches.batches_of(CALLER, after="", limit=9) == []
