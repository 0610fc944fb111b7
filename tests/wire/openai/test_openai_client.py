"""The official `openai` client accepts the gateway's answers, and raises its own exceptions for errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from control_plane.core.fingerprint import Fingerprint
from control_plane.core.model import ModelState
from control_plane.inference.governance import Governance
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.http1 import make_answer
from tests.fakes import FakeUpstream
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.fakes.triton.text_model import FakeTextModel, embedding_of
from tests.wire.gateway import gateway


def governed(**limits: Any) -> Governance:
    return governance(known_state(keys=(api_key(1, "infer:m"),), tenants=(Tenant("team", **limits),)), authentication=True)


@asynccontextmanager
async def client(model: FakeTextModel | None = None, *, key: str = key_text(1), **limits: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client connected to a gateway of its own, without retries."""
    upstream, fingerprints = FakeUpstream(), Fingerprints()
    upstream.http.answer = model or FakeTextModel()
    upstream.control.states = {"m": ModelState.READY}
    fingerprints.change({"m": Fingerprint(bytes(32), is_cacheable=True)})
    async with (
        gateway(upstream, governed=governed(**limits), fingerprints=fingerprints) as it,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{it.port}/v1", api_key=key, max_retries=0) as connected,
    ):
        yield connected


@pytest.mark.parametrize("form", [pytest.param({}, id="base64-by-default"), pytest.param({"encoding_format": "float"}, id="float")])
async def test_embeddings_of_strings_and_lists(form: dict[str, Any]) -> None:
    async with client() as it:
        one = await it.embeddings.create(model="m", input="a text", **form)
        many = await it.embeddings.create(model="m", input=["a", "b", "a"], **form)
        assert [each.embedding for each in one.data] == [embedding_of(b"a text")]
        assert [(each.index, each.embedding) for each in many.data] == [
            (index, embedding_of(text)) for index, text in enumerate((b"a", b"b", b"a"))
        ]
        assert (many.object, many.model, many.usage.prompt_tokens, many.usage.total_tokens) == ("list", "m", 3, 3)


async def test_the_cache_shows_in_the_raw_response() -> None:
    async with client() as it:
        said = [(await it.embeddings.with_raw_response.create(model="m", input=["a", "b"])).headers["tidegate-cache"] for _ in range(2)]
        assert said == ["miss", "hit"]


async def test_models_are_listed_and_retrieved() -> None:
    async with client() as it:
        assert [model.id async for model in it.models.list()] == ["m"]
        assert (await it.models.retrieve("m")).owned_by == "tidegate"


DEAD = FakeTextModel(failure=lambda request: make_answer(500, b'{"error":"it broke"}'))
Call = Callable[[openai.AsyncOpenAI], Awaitable[Any]]


def embed(model: str = "m", text: Any = "a", **more: Any) -> Call:
    return lambda it: it.embeddings.create(model=model, input=text, **more)


def describe(it: openai.AsyncOpenAI) -> Awaitable[Any]:
    return it.models.retrieve("m")


@pytest.mark.parametrize(
    ("call", "how", "error", "code"),
    [
        pytest.param(embed(text=""), {}, openai.BadRequestError, None, id="empty"),
        pytest.param(embed(dimensions=7), {}, openai.BadRequestError, None, id="dimensions"),
        pytest.param(embed(), {"key": "sk-wrong"}, openai.AuthenticationError, "invalid_api_key", id="wrong-key"),
        pytest.param(embed("other"), {}, openai.PermissionDeniedError, None, id="not-allowed"),
        pytest.param(embed(), {"model": FakeTextModel("elsewhere")}, openai.NotFoundError, "model_not_found", id="unknown"),
        pytest.param(
            lambda it: it.models.retrieve("m"), {"model": FakeTextModel("n")}, openai.NotFoundError, "model_not_found", id="no-model"
        ),
        pytest.param(embed(), {"concurrency": 0}, openai.RateLimitError, "rate_limit_exceeded", id="limit"),
        pytest.param(embed(), {"model": DEAD}, openai.InternalServerError, None, id="broken"),
        pytest.param(lambda it: it.responses.create(model="m", input="a"), {}, openai.NotFoundError, None, id="no-such-call"),
    ],
)
async def test_errors_are_the_clients_own(call: Call, how: dict[str, Any], error: type[openai.APIStatusError], code: str | None) -> None:
    async with client(**how) as it:
        with pytest.raises(error) as caught:
            await call(it)
        assert (caught.value.code, bool(caught.value.message)) == (code, True)


async def test_what_would_fail_again_is_not_sent_again() -> None:
    asked: list[Any] = []

    def fail(request: Any) -> Any:
        asked.append(request)
        return make_answer(500, b'{"error":"it broke"}')

    async with client(FakeTextModel(failure=fail)) as it:
        with pytest.raises(openai.InternalServerError):
            await embed()(it.with_options(max_retries=2))
    assert len(asked) == 1
