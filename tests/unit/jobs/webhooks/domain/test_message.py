"""Messages by Standard Webhooks: what the official verifier says to them, and the vector that its implementations share."""

from __future__ import annotations

import time
from base64 import b64encode
from dataclasses import replace

import openai
import orjson
import pytest
from standardwebhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from control_plane.jobs.domain.delivery import GIVE_UP_S, Delivery, DeliveryState
from control_plane.jobs.domain.job import Blob, JobState, Result
from control_plane.jobs.webhooks.domain.message import _signature, body_of, headers_of, message_id
from tests.fakes.jobs import job, job_id

OLD, NEW, FOREIGN = ("whsec_" + b64encode(bytes([number]) * 32).decode() for number in (1, 2, 3))
ENDED = replace(
    job(webhook=Delivery("https://a.example/?secret"), state=JobState.SUCCEEDED, fence=2, ended_s=12.5),
    result=Result(Blob("b", 9, "d", b"the answer"), 200, 3),
)


def test_the_vector_of_the_standards_own_libraries() -> None:
    signed = b'msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}'
    assert _signature("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", signed) == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_official_verifier_accepts_it_by_each_secret_and_by_no_other() -> None:
    body = body_of(ENDED)
    headers = dict(headers_of(ENDED, body, [NEW, OLD], now_s=time.time()))
    for secret in (OLD, NEW):
        assert Verifier(secret).verify(body, headers)["data"]["id"] == job_id(1)
    with pytest.raises(WebhookVerificationError):
        Verifier(FOREIGN).verify(body, headers)
    for name in ("webhook-id", "webhook-timestamp"):
        with pytest.raises(WebhookVerificationError):
            Verifier(OLD).verify(body, headers | {name: str(int(time.time()) + 1)})
    with pytest.raises(WebhookVerificationError):
        Verifier(OLD).verify(body + b" ", headers)


def test_the_message_is_the_jobs_view_with_the_place_of_its_result_and_not_the_result() -> None:
    message = orjson.loads(body_of(ENDED))
    assert (message["type"], message["timestamp"]) == ("job.succeeded", "1970-01-01T00:00:12.500+00:00")
    assert (message["data"]["state"], message["data"]["result"], message["data"]["status"]) == (
        "succeeded",
        f"/v2/jobs/{job_id(1)}/result",
        200,
    )
    assert "webhook" not in message["data"]
    assert b"the answer" not in body_of(ENDED)


def test_it_is_the_same_each_time_and_small_whatever_the_job_says() -> None:
    assert body_of(ENDED) == body_of(replace(ENDED, revision=9, webhook=None))
    assert len(body_of(replace(ENDED, error="\x00" * 10**6, model="m" * 255))) < 20_000


def test_of_a_batch_it_is_the_event_that_openais_own_client_reads() -> None:
    secret = "whsec_" + b64encode(bytes(range(32))).decode()
    webhook = Delivery("https://a.example/", DeliveryState.PENDING, until_s=GIVE_UP_S + 1000.0, event="batch.completed", about="batch_1")
    part = replace(ENDED, webhook=webhook)
    body, now_s = body_of(part), time.time()
    headers = dict(headers_of(part, body, [secret], now_s=now_s))

    told = openai.OpenAI(api_key="x").webhooks.unwrap(body, headers, secret=secret)
    assert (told.type, told.data.id, told.created_at) == ("batch.completed", "batch_1", 1000)
    assert told.id == headers["webhook-id"] == "batch_1-completed"
    assert part.id not in body.decode(), "which job delivers it is nobody's business"


def test_each_end_of_a_job_has_an_id_of_its_own() -> None:
    ends = [ENDED, replace(ENDED, state=JobState.DEAD), replace(ENDED, state=JobState.DEAD, fence=3), replace(ENDED, id=job_id(2))]
    assert len({message_id(each) for each in ends}) == 4
    assert message_id(ENDED) == message_id(replace(ENDED, revision=9, webhook=None, is_charged=True))
