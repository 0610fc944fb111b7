"""Lines of a chunk are computed as one call where that holds nobody up and nothing counts them, else one by one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.errors import DeadlineExceeded, InvalidRequest, UpstreamUnavailable
from control_plane.core.infer_call import Outcome
from control_plane.core.principal import ANONYMOUS
from control_plane.embeddings.domain.embedding_tensors import EmbeddedText
from control_plane.embeddings.embeddings import EmbeddingsAnswer
from control_plane.frontends.batches.compute_lines import LinesCompute
from control_plane.frontends.jobs.yielding import Yielding
from control_plane.jobs.domain.job import Job
from control_plane.jobs.ports import Computed, TryAgain
from control_plane.metering.domain.usage import Usage
from tests.fakes.governance import FakeMeter
from tests.fakes.jobs import job


class FakeEmbeddings:
    """Embeddings service whose row of a text is its length; `fails` says which calls fail, by their inputs."""

    def __init__(self, fails: Any = lambda inputs: None) -> None:
        self.calls: list[tuple[bytes, ...]] = []
        self._fails = fails
        self._meter: Any = None
        self.may_yield: bool | None = None

    def metered_by(self, meter: Any, may_yield: bool) -> FakeEmbeddings:
        self._meter = meter
        self.may_yield = may_yield
        return self

    def begin(self, tasks: asyncio.TaskGroup) -> None: ...

    async def embed(self, call: Any) -> EmbeddingsAnswer:
        meter, wanted = self._meter, await run_in_steps(call.read())
        self.calls.append(wanted.inputs)
        meter.add("", "m", Outcome.ANSWERED, len(wanted.inputs), 1, float(len(wanted.inputs)), False)
        if (error := self._fails(wanted.inputs)) is not None:
            raise error
        return EmbeddingsAnswer(tuple(EmbeddedText(bytes(4), len(each)) for each in wanted.inputs), wanted, "m", None, 0)


async def computed(
    here: FakeEmbeddings,
    *texts: str,
    of: Job | None = None,
    is_alone: bool = True,
    may_join: bool = True,
    yielding: Yielding | None = None,
) -> tuple[Computed, list[Any]]:
    lines = [
        orjson.dumps({"custom_id": text, "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": text}})
        for text in texts
    ]
    compute = LinesCompute(
        here.metered_by,  # type: ignore[arg-type]
        meter=FakeMeter(has_log=False),
        max_attempts=3,
        is_alone=lambda: is_alone,
        yielding=yielding or Yielding(lambda: is_alone),
        may_join=lambda tenant, model: may_join,
    )
    found = await compute.compute(of or job(attempts=1), ANONYMOUS, b"\n".join(lines))
    return found, [orjson.loads(each) for each in found.answer.body.splitlines()]


def tokens(lines: list[Any]) -> dict[str, int]:
    return {each["custom_id"]: each["response"]["body"]["usage"]["total_tokens"] for each in lines}


async def test_lines_that_hold_nobody_up_are_one_call_and_each_is_answered_and_charged() -> None:
    here = FakeEmbeddings()
    found, lines = await computed(here, "a", "bb", "ccc")

    assert here.calls == [(b"a", b"bb", b"ccc")]
    assert tokens(lines) == {"a": 1, "bb": 2, "ccc": 3}
    assert found.usage == Usage(requests=3, rows=3, elements=1, compute_units=3.0)
    assert found.model == "m"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"is_alone": False}, id="beside-callers"),
        pytest.param({"may_join": False}, id="counted-one-by-one"),
        pytest.param({"of": job(attempts=2)}, id="second-attempt"),
    ],
)
async def test_else_each_is_a_call(changes: dict[str, Any]) -> None:
    here = FakeEmbeddings()
    found, lines = await computed(here, "a", "bb", "ccc", **changes)

    assert sorted(here.calls) == [(b"a",), (b"bb",), (b"ccc",)]
    assert tokens(lines) == {"a": 1, "bb": 2, "ccc": 3}
    assert found.usage is not None
    assert (found.usage.requests, found.usage.rows) == (3, 3)


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_model_may_interrupt_a_first_attempt_for_callers_and_no_later_one(attempts: int) -> None:
    here = FakeEmbeddings()
    await computed(here, "a", of=job(attempts=attempts), is_alone=False)
    assert here.may_yield == (attempts == 1)


@pytest.mark.parametrize("may_join", [True, False])
async def test_after_an_attempt_in_vain_the_next_ones_are_for_callers_only(may_join: bool) -> None:
    here, yielding = FakeEmbeddings(lambda inputs: DeadlineExceeded("late") if b"slow" in inputs else None), Yielding(lambda: True)
    with pytest.raises(TryAgain):
        await computed(here, "slow", may_join=may_join, yielding=yielding)
    assert here.may_yield
    await computed(here, "a", may_join=may_join, yielding=yielding)
    assert here.may_yield is False


async def test_an_error_of_one_is_not_the_others() -> None:
    here = FakeEmbeddings(lambda inputs: InvalidRequest("too long") if b"bb" in inputs else None)
    found, lines = await computed(here, "a", "bb", "ccc")

    assert (found.failed_lines, [each["response"]["status_code"] for each in lines]) == (1, [200, 200, 400])
    assert lines[-1]["custom_id"] == "bb"


async def test_lines_that_all_fail_count_for_the_model_that_was_asked_not_for_the_name_that_their_caller_used() -> None:
    here = FakeEmbeddings(lambda inputs: InvalidRequest("too long"))
    found, _ = await computed(here, "a", "bb", of=replace(job(attempts=1), model="a-route"))
    assert (found.failed_lines, found.model) == (2, "m")


async def test_an_error_that_may_pass_has_all_tried_again() -> None:
    here = FakeEmbeddings(lambda inputs: UpstreamUnavailable("gone"))
    with pytest.raises(TryAgain, match="gone") as again:
        await computed(here, "a", "bb")
    assert again.value.was_computed
    assert len(here.calls) == 1
