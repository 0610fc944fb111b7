"""Length-aware batching in the real Triton: who is answered when, what becomes of those who fail, leave or have no time left, and an
unload in between.
"""

from __future__ import annotations

import asyncio
import shutil
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http as triton
import tritonclient.http.aio

from tests.e2e import raw_http
from tests.e2e import tidegate as servers
from tests.e2e.tidegate import PROJECT, Tidegate, wait_for

ENCODER = PROJECT / "model_repository" / "text_encoder"
TOKENIZER = PROJECT / "model_repository" / "text_tokenizer" / "1" / "tokenizer.json"
# 45 ms each with two threads, and none worth padding to the next: the last waits for a third of a second.
PAGES = [[[1000 + row] * (250 - 10 * page) for row in range(2)] for page in range(8)]
HOURS = {"tidegate-timeout-ms": "7200000"}
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 64
input [ { name: "INPUT_IDS" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "ATTENTION_MASK" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "EMBEDDING" data_type: TYPE_FP32 dims: [ 384 ] } ]
parameters { key: "time_left" value: { string_value: "true" } }
ensemble_scheduling { step [ {
  model_name: "encoder" model_version: -1
  input_map [ { key: "INPUT_IDS" value: "INPUT_IDS" }, { key: "ATTENTION_MASK" value: "ATTENTION_MASK" } ]
  output_map { key: "EMBEDDING" value: "EMBEDDING" }
} ] }
"""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    """A gateway with the text encoder, without variants: its exact file, and costs by tokens; and an ensemble of it."""
    folder = tmp_path_factory.mktemp("batching")
    version = folder / "models" / "encoder" / "1"
    version.mkdir(parents=True)
    exact = next(path for path in (ENCODER / "1" / "fp32" / "model.onnx", ENCODER / "1" / "model.onnx") if path.exists())
    shutil.copyfile(exact, version / "model.onnx")
    shutil.copyfile(TOKENIZER, version / TOKENIZER.name)
    config = (ENCODER / "config.pbtxt").read_text().replace(f"../../text_tokenizer/1/{TOKENIZER.name}", TOKENIZER.name)
    (version.parent / "config.pbtxt").write_text(config)
    (folder / "models" / "ensemble" / "1").mkdir(parents=True)
    (folder / "models" / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    # Without kept answers: the same pages are asked for again, and what is kept is not batched.
    flags = ("--model-repository", str(folder / "models"), "--load", "encoder", "--load", "ensemble", "--cache-bytes", "0")
    running = servers.start(folder / "state", *flags)
    yield running
    running.kill()


def inputs(ids: Sequence[Sequence[int]], tensor_of: Any = triton.InferInput) -> list[Any]:
    arrays = {"INPUT_IDS": np.array(ids), "ATTENTION_MASK": np.ones_like(np.array(ids))}
    tensors = [tensor_of(name, array.shape, "INT64") for name, array in arrays.items()]
    for tensor, array in zip(tensors, arrays.values(), strict=True):
        tensor.set_data_from_numpy(array)
    return tensors


async def encode(
    client: tritonclient.http.aio.InferenceServerClient, ids: Sequence[Sequence[int]], *, model: str = "encoder", **more: Any
) -> np.ndarray:
    found: np.ndarray = (await client.infer(model, inputs(ids), **more)).as_numpy("EMBEDDING")
    return found


def counts(encoder: Tidegate) -> dict[str, float]:
    """Counters `tidegate_batching_*` of the text encoder, as the gateway's metrics page has them."""
    with urllib.request.urlopen(encoder.endpoints["metrics"]) as page:
        lines = [line for line in page.read().decode().splitlines() if line.startswith("tidegate_batching_")]
    assert all('{model="encoder",variant="",version="1"}' in line for line in lines)
    return {line.partition("{")[0].removeprefix("tidegate_batching_"): float(line.rpartition(" ")[2]) for line in lines}


def client_of(encoder: Tidegate) -> tritonclient.http.aio.InferenceServerClient:
    return tritonclient.http.aio.InferenceServerClient(encoder.address("http"))


async def first_of(waiting: Sequence[asyncio.Task[np.ndarray]]) -> None:
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)


def test_many_lengths_at_once_are_answered_as_each_alone(encoder: Tidegate) -> None:
    texts = [[[2000 + index] * (3 + 14 * index % 120)] for index in range(20)]

    async def ask() -> None:
        async with client_of(encoder) as client:
            alone = [await encode(client, ids) for ids in texts]
            together = await asyncio.gather(*(encode(client, ids) for ids in texts))
        np.testing.assert_allclose(np.concatenate(together), np.concatenate(alone), atol=1e-5)

    asyncio.run(ask())


def test_a_sentence_is_answered_before_pages_that_wait(encoder: Tidegate) -> None:
    async def ask() -> None:
        async with client_of(encoder) as client, asyncio.TaskGroup() as group:
            pages = [group.create_task(encode(client, ids)) for ids in PAGES]
            await first_of(pages)
            await encode(client, [[2000] * 10])
            # In the order of arrival there would be none left.
            assert sum(page.done() for page in pages) <= len(pages) // 2

    asyncio.run(ask())


@pytest.mark.parametrize("model", ["encoder", "ensemble"])
@pytest.mark.parametrize("protocol", [triton, tritonclient.grpc], ids=["http", "grpc"])
def test_what_is_due_within_a_microsecond_has_expired_once_it_could_run(encoder: Tidegate, protocol: Any, model: str) -> None:
    before, page = counts(encoder)["expired_total"], PAGES[0]
    with protocol.InferenceServerClient(encoder.address("http" if protocol is triton else "grpc")) as client:
        with pytest.raises(triton.InferenceServerException, match="Request timeout expired"):
            client.infer(model, inputs(page, protocol.InferInput), timeout=1)
        assert client.infer(model, inputs(page, protocol.InferInput), timeout=10**9).as_numpy("EMBEDDING").shape == (2, 384)

    wait_for(lambda: counts(encoder)["expired_total"] == before + 1, what="its count")


def test_what_waits_behind_other_work_until_its_callers_deadline_is_not_computed(encoder: Tidegate) -> None:
    before = counts(encoder)["expired_total"]

    def is_counted() -> bool:
        return counts(encoder)["expired_total"] > before

    async def hold(client: tritonclient.http.aio.InferenceServerClient, ended: asyncio.Event) -> None:
        while not ended.is_set():
            await encode(client, [[1000 + row] * 250 for row in range(8)], headers=HOURS)

    async def ask() -> None:
        ended = asyncio.Event()
        async with client_of(encoder) as client, asyncio.timeout(servers.LONG_S), asyncio.TaskGroup() as group:
            for _ in range(2):  # of two one runs at any time, and no page overtakes it
                group.create_task(hold(client, ended))
            while not await asyncio.to_thread(is_counted):
                with suppress(triton.InferenceServerException):  # or it was answered: a machine may be as fast as that
                    await encode(client, PAGES[0], model="ensemble", headers={"tidegate-timeout-ms": "20"})
            ended.set()

    asyncio.run(ask())


def test_an_unload_answers_everything_that_waits(encoder: Tidegate) -> None:
    """In Triton. Beside callers who leave, as in the next test, most would wait in the gateway."""

    def ask_for(what: str) -> bytes:
        return raw_http.exchange(encoder.port("http"), "POST", f"/v2/repository/models/encoder/{what}", b"").partition(b"\r\n")[0]

    async def ask() -> list[np.ndarray]:
        async with client_of(encoder) as client, asyncio.TaskGroup() as group:
            pages = [group.create_task(encode(client, ids)) for ids in PAGES]
            await first_of(pages)
            assert not all(page.done() for page in pages)
            assert b" 200 " in await asyncio.to_thread(ask_for, "unload")
        return [page.result() for page in pages]

    assert [answer.shape for answer in asyncio.run(ask())] == [(2, 384)] * len(PAGES)
    wait_for(lambda: b" 200 " in ask_for("load"), what="its load after the unload")


def test_one_that_fails_and_one_that_leaves_cost_the_others_nothing(encoder: Tidegate) -> None:
    async def ask() -> None:
        async with client_of(encoder) as client:
            expected = await encode(client, PAGES[0])
            tasks = [asyncio.ensure_future(encode(client, ids)) for ids in (*PAGES, PAGES[0], [[10**6] * 250])]  # noqa: TID251
            await first_of(tasks)
            leaving = next(task for task in tasks[1:-2] if not task.done())
            leaving.cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
        kinds = [type(answer) for answer, task in zip(answers, tasks, strict=True) if task is not leaving]
        assert kinds == [np.ndarray] * len(PAGES) + [triton.InferenceServerException]
        np.testing.assert_allclose(answers[-2], expected, atol=1e-5)

    asyncio.run(ask())


def test_what_was_batched_can_be_read_from_the_gateways_metrics(encoder: Tidegate) -> None:
    async def ask() -> None:
        async with client_of(encoder) as client:
            await encode(client, [[2000] * 10])

    asyncio.run(ask())

    wait_for(lambda: counts(encoder).get("requests_total", 0) > 0, what="the count of requests")
    counted = counts(encoder)
    assert 0 < counted["batches_total"] <= counted["requests_total"] <= counted["rows_total"]
    assert 0 < counted["useful_tokens_total"] <= counted["padded_tokens_total"]
    assert counted["compute_seconds_total"] > 0
