"""One answer as it comes: pieces, deadlines, errors, and callers who leave."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from control_plane.core.errors import DeadlineExceeded, UpstreamFailed, UpstreamUnavailable
from control_plane.generation.domain.completion_answer import CompletionAnswer
from control_plane.generation.domain.completion_request import CompletionRequest
from control_plane.generation.generated_stream import GeneratedStream
from control_plane.inference.retries.faults import Fault, fault_in, fault_of_error
from control_plane.protocols.grpc import GrpcHead
from tests.fakes.triton.generative_model import response
from tests.fakes.triton.upstream import FakeGrpcStream

SHORT_S, LONG_S = 0.05, 30.0


def made(
    *, is_streamed: bool = True, timeout_s: float = LONG_S, counted: list[tuple[int, int]] | None = None
) -> tuple[FakeGrpcStream, GeneratedStream]:
    triton = FakeGrpcStream(GrpcHead("/m"))
    answer = CompletionAnswer(CompletionRequest("m", 10, prompt="p", is_streamed=is_streamed), id_="1", created_s=1)
    counts = [] if counted is None else counted
    stream = GeneratedStream(
        triton, answer, model="m", is_whole=not is_streamed, timeout_s=timeout_s, count_tokens=lambda *found: counts.append(found)
    )
    return triton, stream


def texts(piece: bytes | None) -> list[Any]:
    assert piece is not None
    return [line if line == b"data: [DONE]" else orjson.loads(line[6:])["choices"][0]["text"] for line in piece.split(b"\n\n")[:-1]]


async def test_what_has_come_meanwhile_goes_in_one_piece() -> None:
    triton, stream = made()
    triton.put(response("a"))
    assert await stream.begin() is None
    triton.put(response("b"), response("c"))
    assert texts(await stream.receive()) == ["a", "b", "c"]
    triton.put(response("d"))
    assert texts(await stream.receive()) == ["d"]
    triton.end()
    assert texts(await stream.receive()) == ["", b"data: [DONE]"]
    assert await stream.receive() is None
    stream.close()


async def test_a_piece_stays_small_however_much_has_come() -> None:
    triton, stream = made()
    triton.put(*[response("x" * 40_000) for _ in range(6)])
    await stream.begin()
    assert [len(texts(await stream.receive())) for _ in range(3)] == [2, 2, 2]
    assert triton.received == 6
    stream.close()


async def test_a_whole_answer_is_one_body_however_many_responses_it_has() -> None:
    triton, stream = made(is_streamed=False)
    triton.put(response("a", read=1, written=1), response("b", read=1, written=1))
    triton.end()
    assert await stream.begin() is None
    body = await stream.receive()
    assert body is not None
    assert orjson.loads(body)["choices"][0]["text"] == "ab"
    assert await stream.receive() is None
    stream.close()


async def test_a_whole_answer_that_never_ends_fails_before_it_fills_the_memory() -> None:
    triton, stream = made(is_streamed=False)
    triton.put(*[response("x" * (1 << 20)) for _ in range(70)])
    assert await stream.begin() is None
    with pytest.raises(UpstreamFailed, match="more than 67108864 bytes of text"):
        await stream.receive()
    assert triton.received == 65
    stream.close()


@pytest.mark.parametrize(
    ("text", "status", "fault"),
    [
        pytest.param("Request for unknown model: 'm' is not found", 404, Fault.MODEL_MISSING, id="unknown"),
        pytest.param("Request for unknown model: 'm' version 1 is not at ready state", 404, Fault.MODEL_MISSING, id="unready"),
        pytest.param("Model 'm' version 1 is not at ready state", 503, Fault.NOT_READY, id="loading"),
        pytest.param("m: Exceeds maximum queue size", 503, Fault.QUEUE_FULL, id="full"),
        pytest.param("Stub process 'm_0_0' is not healthy.", 500, Fault.DEAD_STUB, id="dead"),
        pytest.param("The prompt is longer than the maximum model length of 2048", 400, Fault.OTHER, id="too-long"),
        pytest.param("in ensemble 'e', Request for unknown model: 'm' is not found", 404, Fault.MODEL_MISSING, id="unknown-step"),
        pytest.param("out of memory", 500, Fault.OTHER, id="the-models"),
        pytest.param("cannot parse 'Request for unknown model: x'", 500, Fault.OTHER, id="a-callers-words"),
    ],
)
async def test_an_error_in_place_of_the_first_response_is_an_answer(text: str, status: int, fault: Fault) -> None:
    triton, stream = made()
    triton.put(response(error=text))
    failure = await stream.begin()
    assert failure is not None
    assert (failure.status, fault_in(failure)) == (status, fault)
    assert orjson.loads(failure.body)["error"]["message"] == text
    assert (b"\r\nRetry-After: 1\r\n" in failure.head) == (status == 503)
    stream.close()


async def test_a_later_error_comes_after_what_came_before_it() -> None:
    triton, stream = made()
    triton.put(response("a"))
    await stream.begin()
    triton.put(response("b"), response(error="oh"), response("c"))
    assert texts(await stream.receive()) == ["a", "b"]
    with pytest.raises(UpstreamFailed, match=r"^oh$"):
        await stream.receive()
    stream.close()


@pytest.mark.parametrize(
    ("code", "is_broken_off", "fault"),
    [
        pytest.param(14, True, Fault.CONNECTION_LOST, id="a connection that breaks"),
        pytest.param(14, False, Fault.STOPPING, id="a server that stops"),
        pytest.param(7, False, Fault.OTHER, id="a status of its own"),
    ],
)
async def test_an_end_without_an_answer(code: int, is_broken_off: bool, fault: Fault) -> None:
    triton, stream = made()
    triton.is_broken_off = is_broken_off
    triton.end(code, "Server is stopping")
    with pytest.raises((UpstreamUnavailable, UpstreamFailed), match="Server is stopping") as caught:
        await stream.begin()
    assert fault_of_error(caught.value) is fault
    stream.close()


async def test_a_stream_waits_for_each_piece_for_its_time() -> None:
    triton, stream = made(timeout_s=SHORT_S)
    triton.put(response("a"))
    await stream.begin()
    await asyncio.sleep(3 * SHORT_S)  # the caller reads nothing: that is not the model's time
    assert texts(await stream.receive()) == ["a"]
    assert not triton.cancelled.is_set()
    with pytest.raises(DeadlineExceeded, match="generated nothing more"):
        await stream.receive()
    stream.close()


async def test_a_whole_answer_has_its_time_in_all() -> None:
    triton, stream = made(is_streamed=False, timeout_s=SHORT_S)

    async def trickle() -> None:
        while not triton.cancelled.is_set():
            triton.put(response("a"))
            await asyncio.sleep(SHORT_S / 10)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(trickle())
        await stream.begin()
        with pytest.raises(DeadlineExceeded):
            await stream.receive()
    stream.close()


async def test_a_caller_who_leaves_is_charged_for_what_was_generated() -> None:
    counted: list[tuple[int, int]] = []
    triton, stream = made(counted=counted)
    triton.put(response("a", read=7, written=1), response("b", read=7, written=2))
    await stream.begin()
    await stream.receive()
    stream.close()
    stream.close()
    assert counted == [(7, 3)]


async def test_closing_cancels_at_triton_once() -> None:
    counted: list[tuple[int, int]] = []
    triton, stream = made(counted=counted)
    stream.close()
    stream.close()
    assert triton.cancelled.is_set()
    assert triton.answers.qsize() == 1
    assert counted == [], "nothing is known of tokens"


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_one_whose_model_has_died_ends_with_that(is_streamed: bool) -> None:
    triton, stream = made(is_streamed=is_streamed)
    triton.put(response("a"))
    assert await stream.begin() is None
    if is_streamed:
        assert texts(await stream.receive()) == ["a"]
    asyncio.get_running_loop().call_soon(stream.fail, UpstreamUnavailable("its process has died"))
    with pytest.raises(UpstreamUnavailable, match="its process has died"):
        await stream.receive()
    assert triton.cancelled.is_set()
    stream.close()
