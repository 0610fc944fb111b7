"""The parts that the calls of OpenAI's API share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from control_plane.protocols.openai import error_answer, model_answer, model_seen, models_answer


def test_models_and_errors_have_openais_form() -> None:
    assert json.loads(models_answer(["a", "b"]))["data"] == [json.loads(model_answer(name)) for name in "ab"]
    assert json.loads(model_answer("a")) == {"id": "a", "object": "model", "created": 0, "owned_by": "tidegate"}
    assert json.loads(error_answer("no", kind="server_error", code=None, field="input")) == {
        "error": {"message": "no", "type": "server_error", "param": "input", "code": None}
    }


TEXT = 'a text, {"model": "said"} '


@pytest.mark.parametrize("size", [1, 2_000])
@pytest.mark.parametrize(
    ("fields", "model"),
    [
        pytest.param(lambda text: {"model": "m", "input": text}, "m", id="first"),
        pytest.param(lambda text: {"messages": [{"role": "user", "content": text}], "model": "m:1", "n": 2}, "m:1", id="behind"),
        pytest.param(lambda text: {"input": text}, "", id="nowhere"),
        pytest.param(lambda text: {"input": text, "model": 3}, "", id="no text"),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_the_model_is_seen_in_a_body_that_is_refused_however_large_it_is(
    size: int, fields: Any, model: str, separators: tuple[str, str]
) -> None:
    assert model_seen(json.dumps(fields(TEXT * size), separators=separators).encode()) == model


def test_a_body_that_is_no_json_names_no_model() -> None:
    assert model_seen(b'{"model": "m"') == ""
