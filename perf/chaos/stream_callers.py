"""Callers whose answers come piece by piece: each says whether one was whole, was refused, or how it ended early."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence

import grpc
import grpc.aio

from perf.chaos import models
from perf.chaos.answers import BROKEN_OFF, CUT_SHORT, HUNG, LOST, REFUSED, WRONG_ANSWER
from perf.chaos.callers import Asked, GrpcCaller, HttpCaller, chunks, said_by, said_by_status

_STREAM_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
_ON_A_STREAM = (0.0, 0.25, 0.5)
"""What is added to the number of each request on one stream to an ordinary model, so that none is another one's repetition."""
_DONE = b"[DONE]"
_ADVICE = "try again"
"""In an error on a stream, which has no place for a `Retry-After`."""
_OUT_OF_TIME = re.compile(r"(Stream removed \()?Deadline Exceeded")
_CONNECTION_LOST = re.compile(r"Stream removed|Socket closed|Connection reset|recvmsg|failed to connect")
"""How gRPC's C core begins its texts for statuses that no server has sent."""


class ChatCaller(HttpCaller):
    """Asks `/v1/chat/completions` for whole answers."""

    def _request(self, asked: Asked, number: float) -> tuple[str, bytes]:
        return "/v1/chat/completions", models.chat_body(asked.model, number, is_streamed=False)

    def _number(self, answer: bytes) -> float:
        return models.chat_number(answer)


class GenerateStreamCaller(HttpCaller):
    """Asks `generate_stream`, whose events end with the body."""

    def _request(self, asked: Asked, number: float) -> tuple[str, bytes]:
        return f"/v2/models/{asked.model}/generate_stream", models.generate_body(number)

    async def _read(self, reader: asyncio.StreamReader, head: bytes, number: float) -> str:
        if head[9:12] != b"200":
            return said_by(head, await self._body(reader, head))
        said, pieces = "", 0
        try:
            async for event in _events(reader):
                text, error = self._told(event)
                if error:
                    await self.close()
                    return f"{BROKEN_OFF} {error}" if pieces else error
                said, pieces = said + text, pieces + bool(text)
        except (OSError, asyncio.IncompleteReadError) as exc:
            await self.close()
            return f"{LOST} after {pieces} pieces: {type(exc).__name__}"
        return _wrong(said, self._whole(number), pieces)

    def _whole(self, number: float) -> str:
        return models.written(number)

    def _told(self, event: bytes) -> tuple[str, str]:
        """The text and the error of an event."""
        told = json.loads(event)
        return told.get("text_output", ""), told.get("error", "")


class ChatStreamCaller(GenerateStreamCaller):
    """Asks `/v1/chat/completions` for streams, whose last event says that they are done."""

    def _request(self, asked: Asked, number: float) -> tuple[str, bytes]:
        return "/v1/chat/completions", models.chat_body(asked.model, number, is_streamed=True)

    def _whole(self, number: float) -> str:
        return models.written(number) + _DONE.decode()

    def _told(self, event: bytes) -> tuple[str, str]:
        if event == _DONE:
            return event.decode(), ""
        told = json.loads(event)
        if "error" in told:
            return "", told["error"]["message"]
        return "".join(choice["delta"].get("content") or "" for choice in told["choices"]), ""


class ModelStreamCaller(GrpcCaller):
    """Asks an ordinary model on a ModelStreamInfer, which the caller half-closes."""

    _is_sent_once = False
    """Whether an error in place of the first piece ends what could not be sent again, either."""

    async def ask(self, asked: Asked, number: float) -> str:
        said, pieces = "", 0
        call = self._connected().stream_stream(_STREAM_PATH)(
            iter(self._messages(asked, number)), metadata=self._metadata, timeout=asked.deadline_s
        )
        try:
            async for message in call:
                text, error = self._told(message)
                if error:
                    return self._broken_off(f"{REFUSED} {error}" if _ADVICE in error else error, pieces)
                said, pieces = said + text, pieces + bool(text)
        except grpc.aio.AioRpcError as exc:
            return self._ended_by(exc, pieces)
        finally:
            call.cancel()
        return _wrong(said, self._whole(number), pieces)

    def _ended_by(self, status: grpc.aio.AioRpcError, pieces: int) -> str:
        for words, how in ((_OUT_OF_TIME, HUNG), (_CONNECTION_LOST, LOST)):
            if words.match(status.details() or ""):
                return f"{how} after {pieces} pieces: {status.code().name} {status.details()}"
        return self._broken_off(said_by_status(status), pieces)

    def _broken_off(self, text: str, pieces: int) -> str:
        return text if not pieces and (text.startswith(REFUSED) or not self._is_sent_once) else f"{BROKEN_OFF} {text}"

    def _messages(self, asked: Asked, number: float) -> Sequence[bytes]:
        return [models.grpc_message(asked.model, number + each, asked.seconds) for each in _ON_A_STREAM]

    def _whole(self, number: float) -> str:
        return "".join(f"{number + each} " for each in _ON_A_STREAM)

    def _told(self, message: bytes) -> tuple[str, str]:
        """The text and the error of a message."""
        return models.streamed_number(message)


class DecoupledStreamCaller(ModelStreamCaller):
    """Asks a model on a ModelStreamInfer that answers one request piece by piece, which the gateway never sends again."""

    _is_sent_once = True

    def _messages(self, asked: Asked, number: float) -> Sequence[bytes]:
        return [models.generate_message(asked.model, number)]

    def _whole(self, number: float) -> str:
        return models.written(number)

    def _told(self, message: bytes) -> tuple[str, str]:
        return models.streamed_text(message)


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The data of each event of a body. Raises OSError, IncompleteReadError: it is cut off."""
    left = b""
    async for chunk in chunks(reader):
        *whole, left = (left + chunk).split(b"\n\n")
        for each in whole:
            yield each.removeprefix(b"data: ")


def _wrong(said: str, whole: str, pieces: int) -> str:
    """Of an answer that ended as a whole one does."""
    if said == whole:
        return ""
    return f"{CUT_SHORT} after {pieces} pieces" if whole.startswith(said) else f"{WRONG_ANSWER}: {said[:80]!r}"
