"""Pydantic's messages as parts of our sentences, for the errors of settings, files and the admin API. Pure."""

from __future__ import annotations

_INPUT_SHOULD, _VALUE_ERROR = "Input should ", "Value error, "
_WORDS = {
    "Field required": "must be given",
    "Extra inputs are not permitted": "is not known here; look for a misspelt name",
    "Input should be a valid dictionary or object to extract fields from": "must be an object",
}


def words_of(message: str) -> str:
    """Return an error's `msg` so that it goes on from the name of what is wrong: `must be less than 5`."""
    if (words := _WORDS.get(message)) is not None:
        return words
    message = message.removeprefix(_VALUE_ERROR)
    return "must " + message.removeprefix(_INPUT_SHOULD) if message.startswith(_INPUT_SHOULD) else message
