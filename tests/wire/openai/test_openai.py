"""OpenAI's embeddings API on a real socket: answers, errors of every origin, and the cache status."""

from __future__ import annotations

import asyncio
import base64
import json
from array import array
from typing import Any

import pytest

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.infer_call import Outcome
from control_plane.core.model import ModelState
from control_plane.frontends.http.limits import HttpLimits
from control_plane.inference.governance import Governance
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.http1 import make_answer
from tests.aio import run
from tests.fakes import FakeUpstream
from tests.fakes.governance import FakeMeter, api_key, governance, key_text, known_state
from tests.fakes.triton.text_model import FakeTextModel, embedding_of
from tests.wire.gateway import Answer, Client, gateway

KEY = f"authorization: Bearer {key_text(1)}\r\n".encode()


def post(body: object, *, headers: bytes = b"", path: bytes = b"/v1/embeddings") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nHost: h\r\n%bContent-Length: %d\r\n\r\n%b" % (path, headers, len(data), data)


def get(path: str, *, headers: bytes = b"", method: bytes = b"GET") -> bytes:
    return b"%b %b HTTP/1.1\r\nHost: h\r\n%b\r\n" % (method, path.encode(), headers)


def triton(model: FakeTextModel | None = None) -> FakeUpstream:
    upstream = FakeUpstream()
    upstream.http.answer = model or FakeTextModel()
    upstream.control.states = {"m": ModelState.READY, "other": ModelState.READY, "gone": ModelState.UNAVAILABLE}
    return upstream


def keeping() -> Fingerprints:
    fingerprints = Fingerprints()
    fingerprints.change({"m": Fingerprint(bytes(32), is_cacheable=True)})
    return fingerprints


def asked(request: bytes, **how: Any) -> Answer:
    """The answer to one request, by a gateway of its own."""

    async def main() -> Answer:
        async with gateway(how.pop("upstream", None) or triton(), **how) as it:
            return await (await it.connect()).ask(request)

    return run(main())


def error_of(answer: Answer) -> tuple[Any, Any, Any]:
    said = json.loads(answer.body)
    assert said.keys() == {"error"}
    assert said["error"].keys() == {"message", "type", "param", "code"}
    assert said["error"]["message"]
    return said["error"]["type"], said["error"]["param"], said["error"]["code"]


def field(answer: Answer, name: bytes) -> bytes | None:
    lines = dict(line.split(b": ", 1) for line in answer.head.split(b"\r\n")[1:] if line)
    return lines.get(name)


def test_embeddings_in_openais_form() -> None:
    answer = asked(post({"model": "m", "input": ["ab", "c", "ab"], "encoding_format": "float"}))

    assert answer.status == 200
    assert json.loads(answer.body) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": embedding_of(text)} for index, text in enumerate((b"ab", b"c", b"ab"))
        ],
        "model": "m",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }
    assert (field(answer, b"Content-Type"), field(answer, b"tidegate-cache")) == (b"application/json", None)


def test_base64_as_clients_ask_for_it() -> None:
    answer = asked(post({"model": "m", "input": "ab", "encoding_format": "base64"}))

    (only,) = json.loads(answer.body)["data"]
    assert array("f", base64.b64decode(only["embedding"])).tolist() == embedding_of(b"ab")


async def test_the_cache_says_what_it_did() -> None:
    async with gateway(triton(), fingerprints=keeping()) as it:
        client = await it.connect()
        first = await client.ask(post({"model": "m", "input": ["a", "b"]}))
        second = await client.ask(post({"model": "m", "input": ["b", "c"]}))
        third = await client.ask(post({"model": "m", "input": ["c", "a"]}))
        forced = await client.ask(post({"model": "m", "input": "a"}, headers=b"Cache-Control: no-cache\r\n"))
        said = [(field(each, b"tidegate-cache"), field(each, b"tidegate-cache-hits")) for each in (first, second, third, forced)]
        assert said == [(b"miss", b"0/2"), (b"miss", b"1/2"), (b"hit", b"2/2"), (b"bypass", b"0/1")]
        assert [each["embedding"] for each in json.loads(third.body)["data"]] == [embedding_of(b"c"), embedding_of(b"a")]


def test_a_route_is_a_model_to_its_callers() -> None:
    rights = governance(known_state(routes=(Route("search", "m"),)))
    answer = asked(post({"model": "search", "input": "a"}), governed=rights)

    assert json.loads(answer.body)["model"] == "search"
    assert field(answer, b"tidegate-model") == b"m"


def test_models_are_listed_and_described() -> None:
    rights = governance(known_state(routes=(Route("search", "m"), Route("lost", "gone"))))
    listed = json.loads(asked(get("/v1/models"), governed=rights).body)

    assert listed == {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": 0, "owned_by": "tidegate"} for name in ("m", "search")],
    }
    assert json.loads(asked(get("/v1/models/search"), governed=rights).body) == listed["data"][1]
    assert error_of(asked(get("/v1/models/other"), governed=rights)) == ("invalid_request_error", None, "model_not_found")


async def test_options_and_head_are_answered() -> None:
    async with gateway(triton()) as it:
        client = await it.connect()
        await client.send(get("/v1/embeddings", method=b"OPTIONS"))
        assert b"204 No Content\r\nAllow: OPTIONS, POST\r\n" in await client.reader.readuntil(b"\r\n\r\n")
        await client.send(get("/v1/models", method=b"HEAD"))
        assert (await client.answer(has_body=False)).status == 200


BUSY = FakeTextModel(failure=lambda request: make_answer(503, b'{"error":"busy"}'))
DEAD = FakeTextModel(failure=lambda request: make_answer(500, b'{"error":"it broke"}'))
OTHER = FakeTextModel(config={"input": [], "output": []})
BAD = "invalid_request_error"


@pytest.mark.parametrize(
    ("request_", "model", "status", "said"),
    [
        pytest.param(post({"model": "m", "input": ""}), None, 400, (BAD, "input", None), id="empty"),
        pytest.param(post(b"{"), None, 400, (BAD, None, None), id="no-json"),
        pytest.param(post({"model": "m", "input": "a", "dimensions": 5}), None, 400, (BAD, "dimensions", None), id="dimensions"),
        pytest.param(post({"model": "m", "input": [1]}), None, 400, (BAD, "input", None), id="tokens"),
        pytest.param(post({"model": "m", "input": "a"}, headers=b"Content-Encoding: gzip\r\n"), None, 400, (BAD, None, None), id="gzip"),
        pytest.param(post({"model": "m", "input": "a"}, headers=b"tidegate-timeout-ms: x\r\n"), None, 400, (BAD, None, None), id="timeout"),
        pytest.param(post({"model": "n", "input": "a"}), None, 404, (BAD, None, "model_not_found"), id="unknown-model"),
        pytest.param(post({"model": "../m", "input": "a"}), None, 404, (BAD, None, "model_not_found"), id="no-name"),
        pytest.param(post({"model": "m"}, path=b"/v1/responses"), None, 404, (BAD, None, None), id="unknown-path"),
        pytest.param(get("/v1/embeddings"), None, 405, (BAD, None, None), id="method"),
        pytest.param(post({"model": "m", "input": "a" * 2_000_000}), None, 413, (BAD, None, None), id="too-large"),
        pytest.param(post({"model": "m", "input": "a"}), BUSY, 503, ("server_error", None, None), id="busy"),
        pytest.param(post({"model": "m", "input": "a"}), DEAD, 502, ("server_error", None, None), id="broken"),
        pytest.param(post({"model": "m", "input": "a"}), OTHER, 400, (BAD, "model", None), id="another-kind"),
        pytest.param(b"GET /v1/models HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", None, 400, (BAD, None, None), id="two-hosts"),
    ],
)
def test_errors_have_openais_form_wherever_they_come_up(
    request_: bytes, model: FakeTextModel | None, status: int, said: tuple[Any, ...]
) -> None:
    answer = asked(request_, upstream=triton(model))

    assert (answer.status, error_of(answer)) == (status, said)


def test_the_other_protocols_errors_are_as_they_were() -> None:
    assert isinstance(json.loads(asked(post(b"", path=b"/v2/nothing")).body)["error"], str)
    assert isinstance(json.loads(asked(post(b"x" * 2_000_000, path=b"/v2/models/m/infer")).body)["error"], str)


async def test_a_deadline_is_the_headers() -> None:
    async with gateway(triton()) as it:
        await (await it.connect()).ask(post({"model": "m", "input": "a"}, headers=b"tidegate-timeout-ms: 1500\r\n"))
        assert all(0 < timeout_s <= 1.5 for timeout_s in it.upstream.http.calls.timeouts_s)
        it.upstream.http.answer = FakeTextModel(failure=lambda request: make_answer(504, b'{"error":"Deadline Exceeded"}'))
        late = await (await it.connect()).ask(post({"model": "m", "input": "a"}))
        assert (late.status, error_of(late)) == (504, ("server_error", None, None))


async def test_without_triton_it_says_when_to_come_again() -> None:
    async with gateway(triton()) as it:
        it.servers.down("Triton is starting")
        answer = await (await it.connect()).ask(post({"model": "m", "input": "a"}))
        assert (answer.status, field(answer, b"Retry-After")) == (503, b"1")


def limited(meter: FakeMeter | None = None, **limits: Any) -> Governance:
    known = known_state(keys=(api_key(1, "infer:m"),), tenants=(Tenant("team", **limits),))
    return governance(known, authentication=True, meter=meter)


def test_who_is_not_known_or_may_not_is_told_so() -> None:
    nobody = asked(post({"model": "m", "input": "a"}), governed=limited())
    wrong = asked(post({"model": "m", "input": "a"}, headers=b"authorization: Bearer sk-x\r\n"), governed=limited())
    other = asked(post({"model": "other", "input": "a"}, headers=KEY), governed=limited())

    assert (nobody.status, error_of(nobody)) == (401, ("authentication_error", None, "invalid_api_key"))
    assert field(nobody, b"WWW-Authenticate") == b"Bearer"
    assert (wrong.status, b"sk-x" in wrong.body) == (401, False)
    assert (other.status, error_of(other)) == (403, ("permission_error", None, None))


async def test_who_has_used_up_a_limit_is_told_when_to_come_again_also_on_the_head_of_a_large_body() -> None:
    meter = FakeMeter()
    async with gateway(triton(), governed=limited(meter, requests_per_s=1.0, burst=1)) as it:
        client = await it.connect()
        assert (await client.ask(post({"model": "m", "input": "a"}, headers=KEY))).status == 200
        refused = await client.ask(post({"model": "m", "input": "a"}, headers=KEY))
        await client.send(b"POST /v1/embeddings HTTP/1.1\r\nHost: h\r\n%bContent-Length: 900000\r\n\r\n" % KEY)
        for answer in (refused, await client.answer()):
            assert (answer.status, error_of(answer)) == (429, ("rate_limit_error", None, "rate_limit_exceeded"))
            assert field(answer, b"Retry-After") == b"1"
    assert [event.outcome for event in meter.events] == [Outcome.ANSWERED, Outcome.REFUSED, Outcome.REFUSED]
    assert [(event.model, event.rows, event.compute_units) for event in meter.events[:1]] == [("m", 1, 1.0)]


async def test_a_caller_that_leaves_ends_its_computation() -> None:
    async with gateway(triton(), fingerprints=keeping()) as it:
        client = await it.connect()
        await client.ask(post({"model": "m", "input": "a"}))
        it.upstream.http.calls.hold()
        await client.send(post({"model": "m", "input": "b"}))
        while not it.upstream.http.calls.in_progress:
            await asyncio.sleep(0.01)
        await client.close()
        await it.upstream.http.calls.cancelled.wait()


async def test_thousands_of_texts_come_and_go_in_steps() -> None:
    limits = HttpLimits(max_body_bytes=64 << 20, max_header_bytes=16 << 10, max_connections=100)
    texts = [f"text {number} " + "x" * 2000 for number in range(2048)]

    async with gateway(triton(FakeTextModel(max_batch_size=64)), limits, fingerprints=keeping()) as it:
        client = await it.connect()
        for expected in (b"0/2048", b"2048/2048"):
            answer = await large_answer(client, post({"model": "m", "input": texts}))
            assert field(answer, b"tidegate-cache-hits") == expected
            assert [each["embedding"] for each in json.loads(answer.body)["data"]] == [embedding_of(text.encode()) for text in texts]
        refused = await client.ask(post({"model": "m", "input": [*texts, "one more"]}))
        assert (refused.status, error_of(refused)) == (400, (BAD, "input", None))


async def large_answer(client: Client, request: bytes) -> Answer:
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(client.answer())
        await client.send(request)
    return answer.result()


def test_a_defect_is_told_in_openais_form_and_without_details(caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: object) -> Any:
        raise ZeroDivisionError("a secret")

    upstream = triton()
    upstream.http.answer = fail
    answer = asked(post({"model": "m", "input": "a"}), upstream=upstream)

    assert (answer.status, error_of(answer)) == (500, ("server_error", None, None))
    assert b"secret" not in answer.body
    assert "this is a defect" in caplog.text


def test_what_the_upstream_cannot_be_asked_is_unavailable() -> None:
    def fail(request: object) -> Any:
        raise UpstreamUnavailable("connection refused")

    upstream = triton()
    upstream.http.answer = fail

    assert asked(post({"model": "m", "input": "a"}), upstream=upstream).status == 503
