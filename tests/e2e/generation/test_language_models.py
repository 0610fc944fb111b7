"""Text from a language model through the gateway and the real Triton, over HTTP and gRPC: whose answer it is, and who waits for whom."""

from __future__ import annotations

import json
import queue
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.grpc

from tests.e2e import tidegate as servers
from tests.e2e.forks import PROJECT
from tests.e2e.tidegate import LONG_S, Tidegate, wait_for
from tests.unit.python_backends.text_generator.tiny_language_model import save_language_model

SHIPPED = PROJECT / "model_repository" / "text_generation"
WEIGHTS = SHIPPED / "1" / "fp32"
CACHE, LONG = 100_000, 20_000
WRITER, CHAT = "writer", "text_generation"
"""A model so small that it costs next to nothing who waits for whom, and the shipped one, which has something to say."""
TOKENS = 12
QUESTIONS = ("What is the capital of France?", "Name three fruits.", "How many days has a week?", "Say a word in Greek: καλημέρα")
GREEDY = ("The capital of France is Paris.", "1. Bananas\n2. Oranges\n3.", "A week is 7 days.", "Καλημέρα is a Greek")
"""What transformers' `generate` writes with these weights: each token is ahead of the next likely one by far more than rounding."""
LONG_ANSWER = {"temperature": 0, "max_tokens": LONG, "ignore_eos": True}
"""One that nobody waits for."""


def config(folder: Path) -> str:
    """All that a folder of one's own needs; the rest is completed."""
    values = {"max_sequences": 4, "kv_cache_tokens": CACHE, "max_prompt_tokens": 700, "max_output_tokens": CACHE, "prefill_tokens": 32}
    lines = [f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}' for key, value in {"folder": folder, **values}.items()]
    return "\n".join(['backend: "text_generator"', *lines])


def prompt(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    if not (WEIGHTS / "manifest.json").exists():
        pytest.skip("the language model is not built: `make models` builds it")
    repository = tmp_path_factory.mktemp("repository")
    (repository / WRITER / "1").mkdir(parents=True)
    weights = save_language_model(tmp_path_factory.mktemp("weights"), hidden_size=64, layers=2, longest=CACHE)
    (repository / WRITER / "config.pbtxt").write_text(config(weights))
    flags = ("--model-repository", str(PROJECT / "model_repository"), "--model-repository", str(repository))
    started = servers.start(tmp_path_factory.mktemp("tidegate"), *flags, "--load", WRITER, "--load", CHAT)
    yield started
    assert started.stop() == 0, started.said()


def generate(running: Tidegate, model: str, body: dict[str, Any], call: str = "generate") -> tuple[int, str]:
    url = f"{running.endpoints['http']}/v2/models/{model}/{call}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=LONG_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def greedy(question: str, **more: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_tokens": TOKENS} | more
    return {"text_input": prompt(question), "sampling_parameters": json.dumps(sampling), "exclude_input_in_output": True}


class Stream:
    """One request on a gRPC stream of its own, with the unmodified client."""

    def __init__(self, running: Tidegate, text: str, sampling: dict[str, Any], model: str) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(running.address("grpc"))
        self.parts: queue.Queue[Any] = queue.Queue()
        self.errors: list[Exception] = []
        self.is_over = threading.Event()
        inputs = [
            _input("text_input", "BYTES", np.array([text.encode()], np.object_)),
            _input("stream", "BOOL", np.array([True])),
            _input("sampling_parameters", "BYTES", np.array([json.dumps(sampling).encode()], np.object_)),
        ]
        self._client.start_stream(self._hear)
        self._client.async_stream_infer(model, inputs)

    def _hear(self, result: Any, error: Any) -> None:
        if error is not None:
            self.errors.append(error)
            self.is_over.set()
            return
        self.parts.put(result.as_numpy("text_output")[0].decode())
        if result.get_response().parameters["triton_final_response"].bool_param:
            self.is_over.set()

    def first(self) -> str:
        part: str = self.parts.get(timeout=LONG_S)
        return part

    def whole(self) -> str:
        assert self.is_over.wait(LONG_S)
        assert not self.errors
        return "".join(self.parts.queue)

    def leave(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


@contextmanager
def streams(running: Tidegate, texts: Sequence[str], sampling: dict[str, Any], *, model: str = WRITER) -> Iterator[list[Stream]]:
    """One for each text; one that stays open holds up the gateway's end, as a model that streams need not say which part is its last."""
    started = [Stream(running, text, sampling, model) for text in texts]
    try:
        yield started
    finally:
        for stream in started:
            stream.leave()


def _input(name: str, kind: str, values: Any) -> Any:
    tensor = tritonclient.grpc.InferInput(name, list(values.shape), kind)
    tensor.set_data_from_numpy(values)
    return tensor


def metrics(running: Tidegate, *names: str) -> list[float]:
    """The writer's, all from one page."""
    with urllib.request.urlopen(running.endpoints["metrics"], timeout=LONG_S) as page:
        lines = page.read().decode().splitlines()
    begins = [f'tidegate_generation_{name}{{model="{WRITER}"' for name in names]
    return [next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(each)), 0) for each in begins]


def metric(running: Tidegate, name: str) -> float:
    return metrics(running, name)[0]


def idle(running: Tidegate) -> None:
    """Wait until nobody is in the batch; what was counted until then is told before that."""
    wait_for(lambda: metric(running, "running") == 0, what="the end of all answers", every_s=0.2)


def events_of(body: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line.startswith("data: ")]


def test_greedy_answers_are_those_of_transformers_alone_and_beside_others(running: Tidegate) -> None:
    asked = [prompt(question) for question in QUESTIONS]
    with streams(running, asked, {"temperature": 0, "max_tokens": TOKENS}, model=CHAT) as together:
        assert [stream.whole() for stream in together] == [*GREEDY]
    assert json.loads(generate(running, CHAT, greedy(QUESTIONS[1]))[1])["text_output"] == GREEDY[1], "alone; others are asked below"


def test_a_stream_over_http_has_the_same_parts_and_says_how_it_ended(running: Tidegate) -> None:
    asked = greedy(QUESTIONS[3]) | {"return_finish_reason": True, "return_num_input_tokens": True, "return_num_output_tokens": True}
    _, whole = generate(running, CHAT, asked)
    status, body = generate(running, CHAT, asked | {"stream": True}, "generate_stream")
    events, answer = events_of(body), json.loads(whole)

    assert status == 200
    assert len(events) > 1
    assert "".join(event["text_output"] for event in events) == answer["text_output"]
    assert sum(event["num_output_tokens"] for event in events) == answer["num_output_tokens"]
    assert {event["finish_reason"] for event in events[:-1]} == {"None"}
    assert events[-1]["finish_reason"] == answer["finish_reason"]
    assert (answer["text_output"], answer["num_input_tokens"] > 10) == (GREEDY[3], True)


def test_the_shipped_model_serves_what_was_measured_and_its_template_is_in_its_configuration(running: Tidegate) -> None:
    status, body = generate(running, CHAT, greedy(QUESTIONS[0]) | {"return_finish_reason": True})
    answer = json.loads(body)
    with urllib.request.urlopen(f"{running.endpoints['http']}/v2/models/{CHAT}/config", timeout=LONG_S) as page:
        template = json.load(page)["parameters"]["chat_template"]["string_value"]

    assert (status, answer["finish_reason"]) == (200, "stop")
    assert answer["text_output"] == GREEDY[0]
    assert template == (WEIGHTS / "chat_template.jinja").read_text()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        pytest.param(greedy("word " * 800), "tokens, more than the maximum model length of 700", id="long-prompt"),
        pytest.param(greedy("Hi", logit_bias={}), "no sampling parameter 'logit_bias'", id="unknown"),
        pytest.param(greedy("Hi") | {"stream": True, "exclude_input_in_output": False}, "never repeats its input", id="repeated"),
    ],
)
def test_what_is_refused_is_said(running: Tidegate, asked: dict[str, Any], sentence: str) -> None:
    status, body = generate(running, WRITER, asked)

    assert status == 400
    assert sentence in json.loads(body)["error"]


def test_a_stream_that_is_cancelled_gives_its_place_to_who_waits(running: Tidegate) -> None:
    before = metric(running, "cancelled_total")
    with streams(running, 4 * ["Once upon a time"], LONG_ANSWER) as busy:
        for stream in busy:
            stream.first()
        with streams(running, [prompt(QUESTIONS[0])], {"temperature": 0, "max_tokens": 2}) as (waiting,):
            wait_for(lambda: metric(running, "waiting") == 1, what="the one without a place")
            busy[0].leave()

            assert waiting.whole()
            assert not any(stream.is_over.is_set() for stream in busy[1:])
    idle(running)
    assert metric(running, "cancelled_total") == before + 4
    assert metric(running, "cached_tokens") == 0


def test_a_flood_of_long_prompts_does_not_stop_who_writes(running: Tidegate) -> None:
    long = "word " * 400
    counts = "cancelled_total", "steps_total", "tokens_total", "prompt_tokens_total"
    before = metrics(running, *counts)
    with streams(running, ["Once upon a time"], LONG_ANSWER) as (writer,):
        writer.first()
        with streams(running, 3 * [long], {"temperature": 0, "max_tokens": 1}) as flood:
            for stream in flood:
                stream.whole()
    wait_for(lambda: metric(running, "cancelled_total") == before[0] + 1, what="the writer's end, which is counted last")
    _, steps, tokens, read = (now - then for now, then in zip(metrics(running, *counts), before, strict=True))

    assert (read, steps > 1200 / 32) == (4 + 1200, True)
    assert tokens == steps + 3, "in each step the writer had its token, and each prompt of the flood its own once"


def test_a_crowd_shares_steps(running: Tidegate) -> None:
    idle(running)
    steps, tokens = metrics(running, "steps_total", "tokens_total")
    # One that has all of the cache, so that the crowd joins at once.
    with streams(running, ["Once upon a time"], LONG_ANSWER | {"max_tokens": CACHE}) as (greedy,):
        greedy.first()
        with streams(running, 4 * [prompt(QUESTIONS[1])], {"temperature": 0, "max_tokens": 30, "ignore_eos": True}) as crowd:
            wait_for(lambda: metric(running, "waiting") == 4, what="the crowd")
            greedy.leave()
            assert len({stream.whole() for stream in crowd}) == 1
    idle(running)

    assert metric(running, "tokens_total") - tokens == metric(running, "steps_total") - steps + 3 * 30


def test_a_caller_over_http_that_leaves_costs_no_more_than_its_answer(running: Tidegate) -> None:
    """Triton 24.10 does not tell a model that a caller over HTTP has left, so its bound is the answer's."""
    before = metric(running, "tokens_total")
    body = json.dumps({"text_input": "Once", "stream": True, "sampling_parameters": json.dumps(LONG_ANSWER | {"max_tokens": 60})}).encode()
    with socket.create_connection(("127.0.0.1", running.port("http")), timeout=LONG_S) as connection:
        head = f"POST /v2/models/{WRITER}/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert connection.recv(1)
    wait_for(lambda: metric(running, "tokens_total") > before, what="its first token's count")
    idle(running)
    assert metric(running, "tokens_total") - before <= 60


@pytest.fixture(scope="module")
def client(running: Tidegate) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.endpoints['http']}/v1", api_key="none", max_retries=0, timeout=LONG_S) as connected:
        yield connected


def test_openai_s_client_chats_whole_and_in_parts(client: openai.OpenAI) -> None:
    asked: Any = {"model": CHAT, "messages": [{"role": "user", "content": QUESTIONS[0]}], "temperature": 0}
    whole = client.chat.completions.create(**asked)  # as many tokens as the gateway lets it have, more than the model may write
    short = client.chat.completions.create(**asked, max_tokens=2)
    *parts, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})

    assert "Paris" in (whole.choices[0].message.content or "")
    assert (whole.choices[0].finish_reason, short.choices[0].finish_reason) == ("stop", "length")
    assert (short.usage.prompt_tokens, short.usage.completion_tokens) == (whole.usage.prompt_tokens, 2)
    assert len(parts) > 3
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
    assert last.usage == whole.usage


@pytest.mark.parametrize("prompt", [pytest.param("word " * 800, id="long"), pytest.param("a" * 50_000, id="far-too-long")])
@pytest.mark.parametrize("stream", [False, True])
def test_openai_s_client_hears_that_a_prompt_is_too_long(client: openai.OpenAI, prompt: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum model length") as refused:
        client.completions.create(model=WRITER, prompt=prompt, stream=stream)
    assert refused.value.code == "context_length_exceeded"


def test_a_stream_that_openai_s_client_closes_frees_its_place(running: Tidegate, client: openai.OpenAI) -> None:
    idle(running)
    before, written = metric(running, "cancelled_total"), metric(running, "tokens_total")
    stream = client.completions.create(
        model=WRITER, prompt="Once", max_tokens=4096, temperature=0, stream=True, extra_body={"min_tokens": 4096}
    )
    assert next(stream).choices
    stream.close()
    wait_for(lambda: metric(running, "cancelled_total") == before + 1, what="the model's being told")
    idle(running)
    assert metric(running, "tokens_total") - written < 4096
    assert metric(running, "cached_tokens") == 0


def test_a_model_that_is_not_asked_can_be_unloaded(running: Tidegate) -> None:
    asked = urllib.request.Request(f"{running.endpoints['http']}/v2/repository/models/{CHAT}/unload", b"")
    with urllib.request.urlopen(asked, timeout=LONG_S) as answer:
        assert answer.status == 200
    assert generate(running, CHAT, greedy(QUESTIONS[0]))[0] == 404
    wait_for(lambda: "successfully unloaded 'text_generation'" in running.triton_log(), what="its end")
