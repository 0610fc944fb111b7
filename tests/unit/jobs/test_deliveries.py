"""Deliveries over the real store: what is noted of them, and what a process that dies leaves to others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.jobs.deliveries import Deliveries
from control_plane.jobs.domain.delivery import GIVE_UP_S, LEASE_S, Delivery, DeliveryKind, DeliveryState
from control_plane.jobs.domain.delivery_turns import OF_TENANT
from control_plane.jobs.domain.transitions import cancelled
from control_plane.jobs.ports import NotDelivered
from control_plane.jobs.webhooks.domain.url import UrlRules, WebhookUrl
from control_plane.jobs.webhooks.sender import WebhookSender
from tests.fakes.jobs import ROOMY, job
from tests.unit.jobs.world import CALLER, Fate, Killed, World, running, world

URL, OTHER = "https://receiver.example/hook", "https://other.example/hook"
SECRET = "whsec_" + "A" * 43 + "="


@dataclass
class FakePost:
    """`webhooks/ports.Post` that answers by host: with a status, or by not answering at all (None)."""

    answers: dict[str, int | Exception | None] = field(default_factory=dict)
    sent: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def post(self, url: WebhookUrl, headers: Sequence[tuple[str, str]], body: bytes) -> int:
        self.sent.append((url.host, dict(headers)))
        self.bodies.append(body)
        answer = self.answers.get(url.host, 204)
        if answer is None:
            await self.may_answer.wait()
            raise NotDelivered("no answer within 10 s")
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None: ...

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for _, headers in self.sent]


def sender(here: World, post: FakePost, *, fate: Fate | None = None, secrets: Sequence[str] = (SECRET,)) -> WebhookSender:
    return WebhookSender(
        index=here.store.deliveries,
        post=post if fate is None else fate.of(post),
        rules=UrlRules(),
        secrets_of=lambda tenant: secrets,
        today_s=here.now_s,
    )


def deliveries(here: World, post: FakePost, *, fate: Fate | None = None, secrets: Sequence[str] = (SECRET,)) -> Deliveries:
    store = here.store if fate is None else fate.of(here.store)
    couriers = {DeliveryKind.WEBHOOK: sender(here, post, fate=fate, secrets=secrets)}
    return Deliveries(store=store, couriers=couriers, today_s=here.now_s, draw=lambda: 0.5)


async def deliver(each: Deliveries) -> None:
    """Look once, and wait for what is begun by that."""
    async with asyncio.TaskGroup() as tasks:
        await each.look(tasks)


async def ended(here: World, *, url: str = URL) -> str:
    """Submit a job with a webhook, and have it computed."""
    submitted = await here.submit(webhook=Delivery(url))
    async with running(here.runner()):
        await here.until(lambda job: job.is_charged, submitted.id)
    return submitted.id


async def webhook_of(here: World, job_id: str) -> Delivery:
    found = (await here.job(job_id)).webhook
    assert found is not None
    return found


async def test_an_ended_job_is_told_once(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        post = FakePost()
        open_job = await here.submit(webhook=Delivery(URL))
        await deliver(deliveries(here, post))
        assert post.sent == []
        job_id = await ended(here)
        await here.jobs().cancel(CALLER, open_job.id)
        one, other = deliveries(here, post), deliveries(here, post)
        await asyncio.gather(deliver(one), deliver(other))
        here.clock_s += GIVE_UP_S
        await asyncio.gather(deliver(one), deliver(other))

        assert sorted(each.split("-")[1] for each in post.ids) == sorted(each.split("-")[1] for each in (job_id, open_job.id))
        assert f"{job_id}-1-succeeded" in post.ids
        assert (await webhook_of(here, job_id)).state is DeliveryState.DELIVERED
        assert one.outcomes + other.outcomes == {(DeliveryKind.WEBHOOK, DeliveryState.DELIVERED): 2}


@pytest.mark.parametrize("answer", [500, 404, 302, 199, NotDelivered("it cannot be connected to, or hung up")])
async def test_what_is_not_taken_is_sent_again_later_with_the_same_id_and_given_up_after_a_day(tmp_path: Path, answer: int) -> None:
    async with world(tmp_path) as here:
        post = FakePost({"receiver.example": answer})
        job_id, it = await ended(here), deliveries(here, post)
        await deliver(it)
        first = await webhook_of(here, job_id)
        assert (first.state, first.attempts, first.due_s) == (DeliveryState.PENDING, 1, here.clock_s + 5.0)
        await deliver(it)
        assert len(post.sent) == 1, "not before its time"
        while (found := await webhook_of(here, job_id)).is_pending:
            here.clock_s = found.due_s
            await deliver(it)
        assert found.state is DeliveryState.FAILED
        assert str(answer) in found.error
        assert set(post.ids) == {f"{job_id}-1-succeeded"}
        assert len(set(post.bodies)) == 1
        assert post.sent[0][1]["webhook-timestamp"] != post.sent[-1][1]["webhook-timestamp"]
        assert it.outcomes == {
            (DeliveryKind.WEBHOOK, DeliveryState.PENDING): found.attempts - 1,
            (DeliveryKind.WEBHOOK, DeliveryState.FAILED): 1,
        }
        here.clock_s += GIVE_UP_S
        await here.sweeper().sweep()
        assert await here.store.get(job_id) is None, "then the record may go"


async def test_an_attempt_that_meets_a_defect_counts_as_one_that_failed(tmp_path: Path) -> None:
    """It would else be made again with every lease, for as long as the record is kept."""
    async with world(tmp_path) as here:
        post = FakePost({"receiver.example": ValueError("secret detail")})
        job_id = await ended(here)
        await deliver(deliveries(here, post))
        found = await webhook_of(here, job_id)
        assert (found.state, found.attempts, found.due_s) == (DeliveryState.PENDING, 1, here.clock_s + 5.0)
        assert "internal error" in found.error
        assert "secret" not in found.error
        here.clock_s += GIVE_UP_S
        await deliver(deliveries(here, post))
        assert (await webhook_of(here, job_id)).state is DeliveryState.FAILED


async def test_a_receiver_that_is_gone_is_left_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        post = FakePost({"receiver.example": 410})
        one, two, other = await ended(here), await ended(here), await ended(here, url=OTHER)
        it = deliveries(here, post)
        await deliver(it)
        three = await ended(here)
        await deliver(deliveries(here, post))
        assert [(await webhook_of(here, each)).state.value for each in (one, two, three, other)] == ["gone", "gone", "gone", "delivered"]
        assert [host for host, _ in post.sent].count("receiver.example") in (1, 2), "deliveries that were under way together"
        assert f"{three}-1-succeeded" not in post.ids
        here.clock_s += GIVE_UP_S + 1
        post.answers.clear()
        four = await ended(here)
        await deliver(it)
        assert (await webhook_of(here, four)).state is DeliveryState.DELIVERED


async def test_a_frozen_receiver_holds_up_nobody_else(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        post = FakePost({"receiver.example": None})
        for number in range(3 * OF_TENANT):
            frozen = job(number, tenant="slow", state="running", fence=1, webhook=Delivery(URL))
            await here.store.add(frozen, ROOMY)
        for each in await here.store.jobs_of("slow", state=None, before="", limit=99):
            assert await here.store.replace(cancelled(each, now_s=here.clock_s, policy=here.policy))
        it = deliveries(here, post)
        async with asyncio.TaskGroup() as tasks:
            await it.look(tasks)
            while len(post.sent) < OF_TENANT:
                await asyncio.sleep(0)
            job_id = await ended(here, url=OTHER)
            await it.look(tasks)
            await here.until(lambda job: job.webhook is not None and not job.webhook.is_pending, job_id)
            assert [host for host, _ in post.sent].count("receiver.example") == OF_TENANT
            post.may_answer.set()
        await deliver(it)
        assert [host for host, _ in post.sent].count("receiver.example") == OF_TENANT + 1, "of one that fails one is tried at a time"


async def test_without_a_secret_nothing_is_accepted_and_what_was_accepted_waits(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        post = FakePost()
        job_id = await ended(here)
        without = deliveries(here, post, secrets=())
        with pytest.raises(InvalidRequest, match="no secret"):
            sender(here, post, secrets=()).accepted("team", URL)
        await deliver(without)
        assert (await webhook_of(here, job_id)).error == "the tenant has no secret to sign with"
        here.clock_s += 10
        await deliver(deliveries(here, post))
        assert (await webhook_of(here, job_id)).state is DeliveryState.DELIVERED


async def test_what_is_noted_late_changes_nothing_of_the_attempt_after(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        post = FakePost({"receiver.example": None})
        job_id, frozen = await ended(here), deliveries(here, post)
        async with asyncio.TaskGroup() as tasks:
            await frozen.look(tasks)
            while not post.sent:
                await asyncio.sleep(0)
            here.clock_s += LEASE_S
            post.answers = {"receiver.example": 500}
            await deliver(deliveries(here, post))
            post.may_answer.set()
        found = await webhook_of(here, job_id)
        assert (found.state, found.attempts, found.error) == (DeliveryState.PENDING, 2, "the receiver answered 500")


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_whoever_dies_between_the_final_state_and_the_note_it_is_delivered(tmp_path: Path, at: int, is_after: bool) -> None:
    """The calls of a delivery to the outside: the claim, the request, the note (what is read changes nothing)."""
    async with world(tmp_path) as here:
        post = FakePost()
        job_id = await ended(here)
        with pytest.raises(BaseExceptionGroup) as died:
            await deliver(deliveries(here, post, fate=Fate(at, is_after)))
        assert died.group_contains(Killed)
        await deliver(deliveries(here, post))
        here.clock_s += LEASE_S
        await deliver(deliveries(here, post))
        here.clock_s += LEASE_S
        await deliver(deliveries(here, post))

        assert (await webhook_of(here, job_id)).state is DeliveryState.DELIVERED
        assert set(post.ids) == {f"{job_id}-1-succeeded"}
        assert len(post.sent) <= 2
