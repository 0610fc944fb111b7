"""Triton's answers: how the bytes arrive changes nothing; only AnswerError ends the reading."""

from __future__ import annotations

from collections.abc import Iterable

from tests.fuzz.harness import fuzz, instrumented, slices

with instrumented():
    from control_plane.protocols.http1_response import AnswerError, AnswerReader, ChunkedHead, ChunkReader


def check(data: bytes) -> None:
    """What comes behind an answer is an error only where it comes together with its end."""
    whole, sliced = first_answer([data]), first_answer(slices(data))
    assert whole == sliced or whole == "followed", (whole, sliced)


def first_answer(pieces: Iterable[bytes]) -> object:
    """The first whole answer, or why there is none."""
    reader, chunks = AnswerReader(), None
    body = b""
    try:
        for piece in pieces:
            if chunks is not None:
                body += b"".join(chunks.feed(piece))
            else:
                answer = reader.feed(piece)
                if isinstance(answer, ChunkedHead):
                    chunks, head = ChunkReader(), (answer.status, answer.head)
                    body += b"".join(chunks.feed(answer.rest))
                elif answer is not None:
                    return answer.status, bytes(answer.head), bytes(answer.body)
            if chunks is not None and chunks.is_done:
                return *head, body
    except AnswerError as exc:
        return "followed" if "follow" in str(exc) else "an error"
    return None


if __name__ == "__main__":
    fuzz(check)
