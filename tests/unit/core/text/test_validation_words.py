from __future__ import annotations

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from control_plane.core.text.validation_words import words_of


class Inner(BaseModel):
    name: str


class Some(BaseModel, extra="forbid"):
    number: int = Field(1, ge=1)
    text: str = ""
    inner: Inner | None = None

    @field_validator("text")
    @classmethod
    def _no_x(cls, text: str) -> str:
        if "x" in text:
            raise ValueError("no x, please")
        return text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param({"number": 0}, "must be greater than or equal to 1", id="a bound"),
        pytest.param({"number": "one"}, "must be a valid integer, unable to parse string as an integer", id="another type"),
        pytest.param({"text": "ax"}, "no x, please", id="words of our own"),
        pytest.param({"inner": {}}, "must be given", id="a field that is missing"),
        pytest.param({"nmber": 1}, "is not known here; look for a misspelt name", id="a field that is unknown"),
    ],
)
def test_pydantics_words_go_on_from_a_name(given: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Some.model_validate(given)
    assert words_of(caught.value.errors()[0]["msg"]) == told
