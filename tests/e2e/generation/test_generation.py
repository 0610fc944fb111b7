"""The official `openai` client against generative models in the real Triton, in a fleet that loads them when they are asked for."""

from __future__ import annotations

import asyncio
import http.client
import json
import queue
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.grpc as tritongrpc

from tests.e2e.accounts import Administrator, make_first_key
from tests.e2e.nodes import EMBEDDED, fleet_on
from tests.e2e.tidegate import LONG_S, Tidegate, run_cli, wait_for

MODELS = Path(__file__).parent / "generative"
HI: Any = [{"role": "user", "content": "hi there"}]
SAID = "<|im_start|>user hi there<|im_end|> <|im_start|>assistant"
SOON_S = 1.0
_NEWER = ("return_", "finish_reason", "num_")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parrot; another as of an older vLLM backend, without a template; and one that is loaded by the first call."""
    root = tmp_path_factory.mktemp("models")
    for name in ("parrot", "old_parrot", "cold_parrot"):
        shutil.copytree(MODELS / "parrot", root / name)
    lines = (MODELS / "parrot/config.pbtxt").read_text().splitlines()
    kept = [line for line in lines[: lines.index("parameters {")] if not any(word in line for word in _NEWER)]
    older = "\n".join(kept).replace("optional: true },\n]", "optional: true }\n]").replace("[ -1 ] },\n]", "[ -1 ] }\n]")
    (root / "old_parrot/config.pbtxt").write_text(older)
    return root


@pytest.fixture(scope="module")
def gateway(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tidegate, Administrator]]:
    folder = tmp_path_factory.mktemp("gateway")
    key = make_first_key(folder / "gateway")
    flags = ("--authentication", "--load", "parrot", "--load", "old_parrot")
    with fleet_on(EMBEDDED, folder, *flags, repository=repository) as (running, _):
        administrator = Administrator(running, key)
        administrator.make_tenant("team")
        yield running, administrator


@pytest.fixture(scope="module")
def key(gateway: tuple[Tidegate, Administrator]) -> str:
    return gateway[1].make_key("team", "infer:*")


@pytest.fixture(scope="module")
def client(gateway: tuple[Tidegate, Administrator], key: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway[0].endpoints['http']}/v1", api_key=key, max_retries=0) as connected:
        yield connected


def test_a_chat_and_a_completion(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model="parrot", messages=HI)
    completion = client.completions.create(model="parrot", prompt="a b c d", max_tokens=3)
    stopped = client.completions.create(model="parrot", prompt="a b c d", stop=["c"])

    assert (chat.choices[0].message.content, chat.choices[0].finish_reason, chat.usage.total_tokens) == (SAID, "stop", 8)
    assert (completion.choices[0].text, completion.choices[0].finish_reason) == ("a b c", "length")
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (4, 3)
    assert stopped.choices[0].text == "a b"


def test_tokens_are_charged_to_their_tenant(gateway: tuple[Tidegate, Administrator]) -> None:
    running, administrator = gateway
    administrator.make_tenant("counted")
    own = administrator.make_key("counted", "infer:parrot")
    with openai.OpenAI(base_url=f"{running.endpoints['http']}/v1", api_key=own, max_retries=0) as it:
        it.completions.create(model="parrot", prompt="a b c d", max_tokens=3)
        assert len(list(it.completions.create(model="parrot", prompt="a b", stream=True))) == 3

    def counted() -> tuple[int, int, int]:
        row = administrator.usage().get("counted", {})
        return row.get("requests", 0), row.get("input_tokens", 0), row.get("output_tokens", 0)

    wait_for(lambda: counted() == (2, 6, 5), what="the usage of both calls")


def test_streams(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="parrot", messages=HI, stream=True, stream_options={"include_usage": True}))
    texts = [each.choices[0].text for each in client.completions.create(model="parrot", prompt="a b", stream=True)]

    assert "".join(each.choices[0].delta.content or "" for each in chunks[:-1]) == SAID
    assert (chunks[-2].choices[0].finish_reason, chunks[-1].usage.completion_tokens) == ("stop", 4)
    assert texts == ["a", " b", ""]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_profile_says_how_long_the_first_response_and_each_further_one_take(
    gateway: tuple[Tidegate, Administrator], key: str, protocol: str
) -> None:
    where = ("--state-dir", str(gateway[0].state_dir), "--protocol", protocol, "--concurrency", "2", "--requests", "6")
    ran = run_cli("profile", "parrot", "-o", "json", *where, env={"TIDEGATE_API_KEY": key})
    found = json.loads(ran.stdout)
    assert (found["requests"], found["responses"], found["tokens"]) == (6, 66, 60)
    assert 0 < found["first"]["p50_ms"] <= found["whole"]["p50_ms"]
    assert found["following"]["ms"] > 0
    assert sum(each["ms"] for each in found["stages"]) == pytest.approx(found["first"]["ms"], rel=0.1)
    other = gateway[1].make_key("team", "infer:another")
    assert "parrot" in (said := run_cli("profile", "parrot", *where, env={"TIDEGATE_API_KEY": other}).stderr)
    assert "403" in said or "PERMISSION_DENIED" in said


def test_a_token_comes_before_the_next_is_generated(client: openai.OpenAI) -> None:
    began_s = time.monotonic()
    stream = client.completions.create(model="parrot", prompt="a wait:1 b", stream=True)
    came_s = [time.monotonic() - began_s for _ in stream]
    assert came_s[0] < 0.9
    assert came_s[-1] > 1.0


def test_the_asynchronous_client_has_many_streams_at_once(gateway: tuple[Tidegate, Administrator], key: str) -> None:
    async def said(it: openai.AsyncOpenAI, number: int) -> str:
        stream = await it.completions.create(model="parrot", prompt=f"{number} burst:100", max_tokens=50, stream=True)
        return "".join([each.choices[0].text async for each in stream])

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{gateway[0].endpoints['http']}/v1", api_key=key, max_retries=0) as it:
            return await asyncio.gather(*(said(it, number) for number in range(20)))

    assert asyncio.run(main()) == [" ".join([str(number), *(f"w{each}" for each in range(49))]) for number in range(20)]


def test_sampling_reaches_the_model(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"temperature": 0.5, "top_p": 0.25, "seed": 7, "presence_penalty": 1.5}
    answer = client.completions.create(model="parrot", prompt="sampling?", **asked, extra_body={"top_k": 3, "min_tokens": 1})
    assert json.loads(answer.choices[0].text) == {**asked, "top_k": 3, "min_tokens": 1, "max_tokens": 16}


def test_an_older_backend(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="old_parrot", prompt="a b c d", max_tokens=3)
    texts = [each.choices[0].text for each in client.completions.create(model="old_parrot", prompt="a b", stream=True)]

    assert (answer.choices[0].text, answer.usage) == ("a b c", None)
    assert texts == ["a", " b", ""]
    with pytest.raises(openai.BadRequestError, match="set the parameter chat_template"):
        client.chat.completions.create(model="old_parrot", messages=HI)


def test_a_model_that_is_loaded_nowhere_is_loaded_for_the_call(client: openai.OpenAI) -> None:
    assert "cold_parrot" not in {each.id for each in client.models.list()}
    answer = client.chat.completions.create(model="cold_parrot", messages=HI)
    assert answer.choices[0].message.content == SAID
    assert {"parrot", "old_parrot", "cold_parrot"} <= {each.id for each in client.models.list()}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        pytest.param({"model": "nothing"}, openai.NotFoundError, "nothing", id="unknown"),
        pytest.param({"n": 2}, openai.BadRequestError, "unsupported parameter: 'n'", id="n"),
        pytest.param({"prompt": ["a", "b"]}, openai.BadRequestError, "prompt must be one text", id="prompts"),
        pytest.param({"prompt": "fail:oh"}, openai.InternalServerError, "Error generating stream: oh", id="the-model"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_mistakes_and_failures(
    client: openai.OpenAI, call: dict[str, Any], error: type[openai.APIStatusError], words: str, stream: bool
) -> None:
    with pytest.raises(error, match=words):
        client.completions.create(**{"model": "parrot", "prompt": "a", "stream": stream, **call})


def test_an_error_after_the_first_token_ends_the_stream_with_it(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="parrot", prompt="a b wait:0.2 fail:oh", stream=True)
    assert [next(stream).choices[0].text for _ in range(2)] == ["a", " b"]
    with pytest.raises(openai.APIError, match="Error generating stream: oh"):
        next(stream)


def cancelled(client: openai.OpenAI) -> set[str]:
    """The ids of the requests whose model was told that their callers had left."""
    return set(client.completions.create(model="parrot", prompt="cancelled?", max_tokens=1000).choices[0].text.split())


def in_flight(gateway: Tidegate, key: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port_of_metrics(), timeout=LONG_S)
    connection.request("GET", "/metrics", headers={"x-api-key": key})
    page = connection.getresponse().read().decode()
    connection.close()
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith("tidegate_requests_in_flight"))


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_caller_who_leaves_ends_the_generation_within_a_second(
    gateway: tuple[Tidegate, Administrator], key: str, client: openai.OpenAI, is_streamed: bool
) -> None:
    before = cancelled(client)
    connection = http.client.HTTPConnection("127.0.0.1", gateway[0].port("http"), timeout=LONG_S)
    body = json.dumps({"model": "parrot", "prompt": "a wait:60 b", "stream": is_streamed})
    connection.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}"})
    if is_streamed:
        connection.getresponse().readline()
    else:
        time.sleep(0.5)
    assert connection.sock is not None or is_streamed
    left_s = time.monotonic()
    connection.close()
    wait_for(lambda: cancelled(client) != before, what="the model's being told")
    assert time.monotonic() - left_s < 5 * SOON_S, "a second is promised, and held on a machine that is not busy"
    wait_for(lambda: in_flight(gateway[0], gateway[1].key) == 0, what="the end of the request")


def test_a_revoked_key_ends_its_stream(gateway: tuple[Tidegate, Administrator]) -> None:
    running, administrator = gateway
    own = administrator.make_key("team", "infer:parrot")
    revoked = threading.Timer(0.5, administrator.revoke, (own,))
    with openai.OpenAI(base_url=f"{running.endpoints['http']}/v1", api_key=own, max_retries=0) as it:
        stream = it.completions.create(model="parrot", prompt="a wait:60 b", stream=True)
        revoked.start()
        began_s = time.monotonic()
        with pytest.raises(openai.APIError, match="API key"):
            list(stream)
        assert time.monotonic() - began_s < 10 * SOON_S
    revoked.join()


def test_a_quota_is_told_and_its_client_obeys(gateway: tuple[Tidegate, Administrator]) -> None:
    running, administrator = gateway
    administrator.make_tenant("slow", requests_per_s=1, burst=1)
    own = administrator.make_key("slow", "infer:parrot")
    with openai.OpenAI(base_url=f"{running.endpoints['http']}/v1", api_key=own, max_retries=3) as it:
        began_s = time.monotonic()
        for _ in range(3):
            it.completions.create(model="parrot", prompt="a")
        assert time.monotonic() - began_s > 1.5
        hasty = it.with_options(max_retries=0)
        with pytest.raises(openai.RateLimitError) as caught:
            [hasty.completions.create(model="parrot", prompt="a") for _ in range(3)]
        assert int(caught.value.response.headers["retry-after"]) >= 1
        administrator.make_tenant("slow")
        with pytest.raises(openai.PermissionDeniedError):
            it.completions.create(model="old_parrot", prompt="a")


def test_long_streams_keep_no_short_call_with_a_short_deadline_out(gateway: tuple[Tidegate, Administrator], client: openai.OpenAI) -> None:
    streams = [client.completions.create(model="parrot", prompt="a wait:60 b", stream=True) for _ in range(8)]
    try:
        hurried = client.with_options(default_headers={"tidegate-timeout-ms": "1000"})
        assert [hurried.completions.create(model="parrot", prompt="a").choices[0].text for _ in range(30)] == ["a"] * 30
    finally:
        for each in streams:
            each.close()


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_prompt_under_which_two_processes_die_is_refused_and_others_are_not(client: openai.OpenAI, is_streamed: bool) -> None:
    """The first words of a streamed answer have come; then Triton would tell nobody of the death."""
    asking = client.with_options(default_headers={"tidegate-timeout-ms": "60000"})
    poison = "a wait:0.2 die" if is_streamed else "die now"

    def ask(prompt: str) -> str:
        try:
            answer = asking.completions.create(model="cold_parrot", prompt=prompt, stream=is_streamed)
            return "".join(each.choices[0].text for each in answer) if is_streamed else answer.choices[0].text
        except openai.APIError as exc:
            return exc.message

    assert ask("a") == "a"
    began_s, found = time.monotonic(), [ask(poison)]
    for _ in range(3):
        wait_for(lambda: ask("a") == "a", timeout_s=LONG_S, what="another process")
        found.append(ask(poison))
    assert time.monotonic() - began_s < LONG_S, "nobody waits for the deadline"
    assert "the Python process of 'cold_parrot'" in found[0] or (not is_streamed and "is not healthy" in found[0])
    assert ["2 processes died under it" in each for each in found] == [False, True, True, True]
    assert ask("a") == "a"


def test_a_request_on_a_stream_of_grpc_ends_with_the_process_of_its_model_and_is_refused_after_two(
    gateway: tuple[Tidegate, Administrator], key: str
) -> None:
    def ask(prompt: bytes) -> str:
        """The words of the answer's first response, or of the error that follows it."""
        came: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()
        inputs = []
        for name, value in (("text_input", prompt), ("exclude_input_in_output", True), ("stream", True)):
            array = np.array([value], dtype=object if isinstance(value, bytes) else bool)
            inputs.append(tritongrpc.InferInput(name, array.shape, "BYTES" if isinstance(value, bytes) else "BOOL"))
            inputs[-1].set_data_from_numpy(array)
        with tritongrpc.InferenceServerClient(gateway[0].address("grpc")) as asking:
            asking.start_stream(lambda result, error: came.put((result, error)), headers={"x-api-key": key})
            asking.async_stream_infer("old_parrot", inputs)
            result, error = came.get(timeout=LONG_S)
            if error is None and len(prompt) > 1:
                _, error = came.get(timeout=LONG_S)
            return str(error or result.as_numpy("text_output")[0].decode())

    found = []
    for _ in range(3):
        wait_for(lambda: ask(b"a") == "a", timeout_s=LONG_S, what="the process")
        found.append(ask(b"a wait:0.2 die"))
    assert "the Python process of 'old_parrot'" in found[0]
    assert ["2 processes died under it" in each for each in found] == [False, True, True]
