"""Requests of OpenAI's embeddings API: whatever comes is read or refused, and read alike in pieces and as a whole."""

from __future__ import annotations

import json

import orjson

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from control_plane.core.algorithms.steps import finish
    from control_plane.core.errors import InvalidRequest, ModelNotFound
    from control_plane.core.model import MODEL_NAME
    from control_plane.embeddings.domain.openai_large_input import MAX_TEXTS, large_request_steps
    from control_plane.embeddings.domain.openai_request import EmbeddingsRequest, request_steps


def check(data: bytes) -> None:
    request = read(data)
    if request is not None:
        assert MODEL_NAME.fullmatch(request.model)
        assert 0 < len(request.inputs) <= MAX_TEXTS
        assert all(request.inputs)
    compare_pieces(data, is_taken=request is not None)


def read(data: bytes) -> EmbeddingsRequest | None:
    """None when it is refused, with words that can be sent."""
    try:
        return finish(request_steps(data))
    except (InvalidRequest, ModelNotFound) as exc:
        str(exc).encode()
        return None


def compare_pieces(data: bytes, *, is_taken: bool) -> None:
    """What is read in pieces is what the parser makes of the whole; refused it may be for what is refused later on, too."""
    try:
        pieces = finish(large_request_steps(data))
    except InvalidRequest:
        assert not is_taken or names_of(data).count("input") > 1
        return
    assert orjson.dumps(pieces) == orjson.dumps(orjson.loads(data))


def names_of(data: bytes) -> list[str]:
    """Names in the outermost object; where two are the same the last counts, and a first may be anything."""
    return [name for name, _ in json.loads(data, object_pairs_hook=lambda pairs: pairs)]


if __name__ == "__main__":
    fuzz(check)
