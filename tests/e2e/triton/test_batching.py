"""Length-aware batching in the real Triton: who is answered when, what becomes of those who fail or leave, and an unload in between."""

from __future__ import annotations

import asyncio
import shutil
import urllib.request
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio

from tests.e2e import raw_http
from tests.e2e import tidegate as servers
from tests.e2e.tidegate import PROJECT, Tidegate, wait_for

ENCODER = PROJECT / "model_repository" / "text_encoder"
TOKENIZER = PROJECT / "model_repository" / "text_tokenizer" / "1" / "tokenizer.json"
# 45 ms each with two threads, and none worth padding to the next: the last waits for a third of a second.
PAGES = [[[1000 + row] * (250 - 10 * page) for row in range(2)] for page in range(8)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    """A gateway with the text encoder alone, without variants: its exact file, and costs by tokens."""
    folder = tmp_path_factory.mktemp("batching")
    version = folder / "models" / "encoder" / "1"
    version.mkdir(parents=True)
    exact = next(path for path in (ENCODER / "1" / "fp32" / "model.onnx", ENCODER / "1" / "model.onnx") if path.exists())
    shutil.copyfile(exact, version / "model.onnx")
    shutil.copyfile(TOKENIZER, version / TOKENIZER.name)
    config = (ENCODER / "config.pbtxt").read_text().replace(f"../../text_tokenizer/1/{TOKENIZER.name}", TOKENIZER.name)
    (version.parent / "config.pbtxt").write_text(config)
    # Without kept answers: the same pages are asked for again, and what is kept is not batched.
    flags = ("--model-repository", str(folder / "models"), "--load", "encoder", "--cache-bytes", "0")
    running = servers.start(folder / "state", *flags)
    yield running
    running.kill()


def inputs(ids: Sequence[Sequence[int]]) -> list[triton.InferInput]:
    arrays = {"INPUT_IDS": np.array(ids), "ATTENTION_MASK": np.ones_like(np.array(ids))}
    tensors = [triton.InferInput(name, array.shape, "INT64") for name, array in arrays.items()]
    for tensor, array in zip(tensors, arrays.values(), strict=True):
        tensor.set_data_from_numpy(array)
    return tensors


async def encode(client: tritonclient.http.aio.InferenceServerClient, ids: Sequence[Sequence[int]]) -> np.ndarray:
    found: np.ndarray = (await client.infer("encoder", inputs(ids))).as_numpy("EMBEDDING")
    return found


def client_of(encoder: Tidegate) -> tritonclient.http.aio.InferenceServerClient:
    return tritonclient.http.aio.InferenceServerClient(encoder.address("http"))


async def first_of(waiting: Sequence[asyncio.Task[np.ndarray]]) -> None:
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)


def test_many_lengths_at_once_are_answered_as_each_alone(encoder: Tidegate) -> None:
    texts = [[[2000 + index] * (3 + 7 * index % 120)] for index in range(40)]

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

    def counts() -> dict[str, float]:
        with urllib.request.urlopen(encoder.endpoints["metrics"]) as page:
            lines = [line for line in page.read().decode().splitlines() if line.startswith("tidegate_batching_")]
        assert all('{model="encoder",variant="",version="1"}' in line for line in lines)
        return {line.partition("{")[0].removeprefix("tidegate_batching_"): float(line.rpartition(" ")[2]) for line in lines}

    wait_for(lambda: counts().get("requests_total", 0) > 0, what="the count of requests")
    counted = counts()
    assert 0 < counted["batches_total"] <= counted["requests_total"] <= counted["rows_total"]
    assert 0 < counted["useful_tokens_total"] <= counted["padded_tokens_total"]
    assert counted["compute_seconds_total"] > 0
