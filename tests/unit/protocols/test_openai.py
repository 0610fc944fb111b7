"""The parts that the calls of OpenAI's API share."""

from __future__ import annotations

import json

from control_plane.protocols.openai import error_answer, model_answer, models_answer


def test_models_and_errors_have_openais_form() -> None:
    assert json.loads(models_answer(["a", "b"]))["data"] == [json.loads(model_answer(name)) for name in "ab"]
    assert json.loads(model_answer("a")) == {"id": "a", "object": "model", "created": 0, "owned_by": "tidegate"}
    assert json.loads(error_answer("no", kind="server_error", code=None, field="input")) == {
        "error": {"message": "no", "type": "server_error", "param": "input", "code": None}
    }
