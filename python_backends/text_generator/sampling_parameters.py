"""Sampling parameters of a request: names, defaults and meanings of vLLM's `SamplingParams`, those of them that are known here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from python_backends.runtime.errors import RequestError

MAX_STOPS, MAX_STOP_CHARS = 16, 256
"""Stop strings of a request, and characters of each: text that could be the beginning of one is held back."""
_DIGITS = 20
"""Of the longest number that any parameter may be, with its sign."""


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """Defaults are vLLM's. `temperature` 0 always takes the likeliest token; `top_k` 0 or -1 leaves all tokens in."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    ignore_eos: bool = False

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken, whatever `seed` is."""
        return self.temperature < 1e-5

    @property
    def has_penalties(self) -> bool:
        """Whether a token's chance depends on the tokens before it beyond what the model says."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


def _number(name: str, low: float, high: float, *, above: bool = False) -> Callable[[Any], float]:
    said = f"more than {low:g} and at most {high:g}" if above else f"{low:g}..{high:g}"

    def parse(value: Any) -> float:
        number = float("nan")
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            with suppress(ValueError, OverflowError):
                number = float(value)
        if not low <= number <= high or (above and number == low):  # NaN neither
            raise RequestError(f"sampling parameter '{name}' must be a number, {said}, not {_shown(value)}")
        return number

    return parse


def _integer(name: str, low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        number: int | None = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, float) and value.is_integer():
            number = int(value)
        elif isinstance(value, str) and len(value) <= _DIGITS:
            with suppress(ValueError):
                number = int(value)
        if number is None or not low <= number <= high:
            raise RequestError(f"sampling parameter '{name}' must be a whole number, {low}..{high}, not {_shown(value)}")
        return number

    return parse


def _boolean(name: str) -> Callable[[Any], bool]:
    def parse(value: Any) -> bool:
        if not isinstance(value, bool):
            raise RequestError(f"sampling parameter '{name}' must be true or false, not {_shown(value)}")
        return value

    return parse


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise RequestError(f"sampling parameter 'stop' must be a text or a list of texts, each of 1..{MAX_STOP_CHARS} characters")
    if len(stops) > MAX_STOPS:
        raise RequestError(f"sampling parameter 'stop' has {len(stops)} texts, at most {MAX_STOPS} are watched for")
    return tuple(stops)


_MANY = 2**31 - 1
_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "temperature": _number("temperature", 0, 100),
    "top_p": _number("top_p", 0, 1, above=True),
    "top_k": _integer("top_k", -1, _MANY),
    "max_tokens": _integer("max_tokens", 1, _MANY),
    "min_tokens": _integer("min_tokens", 0, _MANY),
    "stop": _stops,
    "seed": _integer("seed", -(2**63), 2**63 - 1),
    "repetition_penalty": _number("repetition_penalty", 0, 10, above=True),
    "presence_penalty": _number("presence_penalty", -2, 2),
    "frequency_penalty": _number("frequency_penalty", -2, 2),
    "ignore_eos": _boolean("ignore_eos"),
}
"""Numbers may also come as texts ("0.7"), as vLLM's own client sends them."""


def parse_sampling_parameters(text: str) -> SamplingParameters:
    """Parse the tensor `sampling_parameters`, a JSON object; a parameter that is null counts as absent.

    Raises:
        RequestError: It is no JSON object, has a parameter that is not known, or a value out of range.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise RequestError("sampling_parameters must be a JSON object") from None
    if not isinstance(document, dict):
        raise RequestError("sampling_parameters must be a JSON object")
    if unknown := sorted(document.keys() - _PARSERS.keys()):
        raise RequestError(f"no sampling parameter {_shown(unknown[0])}: there are {', '.join(_PARSERS)}")
    return _made(document)


def known_sampling_parameters(text: str) -> SamplingParameters:
    """Take those that are known from a request's own parameters, among which are Triton's and the gateway's.

    Raises:
        RequestError: A value is out of range.
    """
    document = json.loads(text or "{}")
    return _made({name: value for name, value in document.items() if name in _PARSERS})


def _made(document: Mapping[str, Any]) -> SamplingParameters:
    values = {name: _PARSERS[name](value) for name, value in document.items() if value is not None}
    parameters = SamplingParameters(**values)
    if parameters.min_tokens > parameters.max_tokens:
        raise RequestError(f"sampling parameter 'min_tokens' is {parameters.min_tokens}, more than max_tokens, {parameters.max_tokens}")
    return parameters


def _shown(value: Any) -> str:
    return repr(value)[:80]
