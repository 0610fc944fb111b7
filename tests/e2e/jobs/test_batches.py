"""OpenAI's batches against the real Triton, with the unmodified client: each line is answered once, whoever is killed."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import openai

from tests.e2e.conftest import MODELS, Start
from tests.e2e.tidegate import COMPLETE, PROJECT, Tidegate, wait_for

MODEL = "text_embedding"
LINES = 1200


def connect(tidegate: Tidegate) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{tidegate.endpoints['http']}/v1", api_key="nobody asks", max_retries=0)


def line(number: int, **body: Any) -> str:
    call = {"model": MODEL, "input": f"text number {number}", "encoding_format": "base64"} | body
    return json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": "/v1/embeddings", "body": call})


def read(client: openai.OpenAI, file_id: str | None) -> list[Any]:
    return [json.loads(each) for each in client.files.content(file_id).text.splitlines()] if file_id else []


def test_a_batch_survives_the_kill_of_who_computes_it(start: Start, tmp_path: Path) -> None:
    repositories = (PROJECT / "model_repository", PROJECT / "ensembles", MODELS)
    flags = [COMPLETE, *(part for path in repositories for part in ("--model-repository", str(path)))]
    first = start(tmp_path, *flags, "--load", MODEL)
    lines = [line(number) for number in range(LINES)]
    lines[7] = line(7, dimensions=3)
    with connect(first) as client:
        file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h", metadata={"of": "test"})
        wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0, what="the first answers")
    first.kill()

    again = start(tmp_path, *flags, "--load", MODEL)

    with connect(again) as client:
        seen = client.batches.retrieve(batch.id)
        assert seen.request_counts.completed < LINES - 1, "it was killed in the middle"
        wait_for(lambda: client.batches.retrieve(batch.id).status == "completed", what="the batch")
        done = client.batches.retrieve(batch.id)
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (LINES, LINES - 1, 1)
        output, errors = read(client, done.output_file_id), read(client, done.error_file_id)
        assert sorted(each["custom_id"] for each in output + errors) == sorted(f"line-{number}" for number in range(LINES))
        (wrong,) = errors
        assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("line-7", 400)
        some = next(each for each in output if each["custom_id"] == "line-11")
        same = client.embeddings.create(model=MODEL, input="text number 11", encoding_format="base64")
        assert some["response"]["body"]["data"][0]["embedding"] == same.data[0].embedding
    wait_for(lambda: charged(again) == LINES - 1, what="the usage of each line, once")


def charged(tidegate: Tidegate) -> int:
    """Requests that were charged by now, the one that this test made itself aside."""
    with urllib.request.urlopen(f"{tidegate.endpoints['admin']}/usage?by=model&since=1d") as page:
        return sum(row["requests"] for row in json.load(page)["rows"]) - 1
