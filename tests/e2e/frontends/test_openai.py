"""The official `openai` client against the real Triton: the same embeddings as over v2, each text by itself, kept for the next call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.http as triton

from tests.e2e.tidegate import Tidegate

MODEL = "text_embedding"
TEXTS = ["How do I reset my password?", "cat", "東京の桜は三月の終わりに咲く", "a page of text " * 40]


@pytest.fixture(scope="module")
def client(tidegate: Tidegate) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tidegate.endpoints['http']}/v1", api_key="nobody asks", max_retries=0) as connected:
        yield connected


def vectors(answer: Any) -> np.ndarray:
    assert [each.index for each in answer.data] == [*range(len(answer.data))]
    return np.array([each.embedding for each in answer.data], dtype=np.float32)


def over_v2(tidegate: Tidegate, texts: list[str], output: str = "EMBEDDING") -> np.ndarray:
    tensor = triton.InferInput("TEXT", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=np.object_))
    with triton.InferenceServerClient(tidegate.address("http")) as connected:
        return connected.infer(MODEL, [tensor], outputs=[triton.InferRequestedOutput(output)]).as_numpy(output)


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", one, other)


@pytest.mark.parametrize("form", [pytest.param({}, id="base64-by-default"), pytest.param({"encoding_format": "float"}, id="float")])
def test_a_string_and_a_list_are_embedded_as_over_v2(tidegate: Tidegate, client: openai.OpenAI, form: dict[str, Any]) -> None:
    one = client.embeddings.create(model=MODEL, input=TEXTS[0], **form)
    many = client.embeddings.create(model=MODEL, input=TEXTS, dimensions=384, **form)

    reference, counts = over_v2(tidegate, TEXTS), over_v2(tidegate, TEXTS, "TOKENS")
    assert cosines(vectors(many), reference).min() > 0.9999
    assert cosines(vectors(one), reference[:1]).min() > 0.9999
    assert (many.usage.prompt_tokens, one.usage.total_tokens) == (counts.sum(), counts[0, 0])
    assert many.model == MODEL


def test_the_asynchronous_client_is_answered_too(tidegate: Tidegate) -> None:
    async def main() -> np.ndarray:
        async with openai.AsyncOpenAI(base_url=f"{tidegate.endpoints['http']}/v1", api_key="nobody asks") as connected:
            answers = await asyncio.gather(*(connected.embeddings.create(model=MODEL, input=[text, text]) for text in TEXTS))
            return np.array([vectors(answer) for answer in answers])

    found = asyncio.run(main())
    assert np.array_equal(found[:, 0], found[:, 1])
    assert cosines(found[:, 0], over_v2(tidegate, TEXTS)).min() > 0.9999


def test_many_texts_keep_their_order_and_are_found_again(tidegate: Tidegate, client: openai.OpenAI) -> None:
    texts = [f"{number} bottles of beer on the wall" + ", and one more" * (number % 7) for number in range(80)] * 2

    first = client.embeddings.with_raw_response.create(model=MODEL, input=texts)
    second = client.embeddings.with_raw_response.create(model=MODEL, input=texts[::-1])

    found = vectors(first.parse())
    assert cosines(found[:80], np.concatenate([over_v2(tidegate, texts[at : at + 40]) for at in (0, 40)])).min() > 0.9999
    assert np.array_equal(found[:80], found[80:])
    assert np.array_equal(found[::-1], vectors(second.parse()))
    assert [(each.headers["tidegate-cache"], each.headers["tidegate-cache-hits"]) for each in (first, second)] == [
        ("miss", "0/160"),
        ("hit", "160/160"),
    ]


def test_tokens_are_taken_where_the_model_takes_them(tidegate: Tidegate, client: openai.OpenAI) -> None:
    # [CLS] cat [SEP] and [CLS] cat cat [SEP] of the encoder's vocabulary.
    cat, twice = [101, 4937, 102], [101, 4937, 4937, 102]

    found = client.embeddings.create(model="text_encoder", input=[twice, cat])

    assert cosines(vectors(found), over_v2(tidegate, ["cat cat", "cat"])).min() > 0.9999
    assert found.usage.prompt_tokens == 7
    with pytest.raises(openai.BadRequestError, match="takes texts, not tokens"):
        client.embeddings.create(model=MODEL, input=cat)


def test_models_that_embed_texts_are_listed_and_no_others(client: openai.OpenAI) -> None:
    names = {model.id for model in client.models.list()}

    assert {MODEL, "text_encoder"} <= names
    assert not names & {"echo", "slow", "text_tokenizer", "broken"}
    assert client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        pytest.param({"model": "nothing", "input": "a"}, openai.NotFoundError, "'nothing' does not exist", id="unknown"),
        pytest.param({"model": "echo", "input": "a"}, openai.BadRequestError, "no text-embedding model", id="another-kind"),
        pytest.param({"model": MODEL, "input": ["a", ""]}, openai.BadRequestError, "cannot be an empty string", id="empty"),
        pytest.param({"model": MODEL, "input": "a", "dimensions": 100}, openai.BadRequestError, "must be 384", id="dimensions"),
    ],
)
def test_mistakes_are_told(client: openai.OpenAI, call: dict[str, Any], error: type[openai.APIStatusError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        client.embeddings.create(**call)
    assert json.loads(caught.value.response.text)["error"]["message"] in caught.value.message
