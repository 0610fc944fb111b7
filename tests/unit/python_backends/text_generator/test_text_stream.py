"""Text of growing tokens: whole characters, no stop string, not even a part of one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.text_generator.text_stream import TextStream


def bytes_as_tokens(tokens: Sequence[int]) -> str:
    """A tokenizer of single bytes, of which 300 is a special token."""
    return bytes(token for token in tokens if token < 256).decode(errors="replace")


def streamed(text: str, stop: Sequence[str] = (), prompt: str = "") -> tuple[list[str], bool]:
    stream = TextStream(bytes_as_tokens, stop, list(prompt.encode()))
    parts = []
    for token in text.encode():
        part, stopped = stream.push(token)
        parts.append(part)
        if stopped:
            return parts, True
    return [*parts, stream.finish()], False


@given(st.text(alphabet=st.characters(exclude_characters="\N{REPLACEMENT CHARACTER}", exclude_categories=("Cs",))), st.text(max_size=20))
def test_parts_are_whole_characters_and_together_the_text(text: str, prompt: str) -> None:
    parts, _ = streamed(text, prompt=prompt)

    assert "".join(parts) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in part for part in parts)


@given(st.text(alphabet="ab\u20ac", max_size=60), st.lists(st.text(alphabet="ab\u20ac", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_whichever_stop_string_is_whole_first(text: str, stop: list[str]) -> None:
    parts, stopped = streamed(text, stop)

    ends = [text.find(each) + len(each) for each in stop if each in text]
    if not ends:
        assert ("".join(parts), stopped) == (text, False)
    else:
        first = min(ends)
        begins = min(first - len(each) for each in stop if text[:first].endswith(each))
        assert ("".join(parts), stopped) == (text[:begins], True)


def test_what_could_become_a_stop_string_waits_and_comes_when_it_does_not() -> None:
    parts, _ = streamed("a<|b", ["<|end|>"])

    assert parts == ["a", "", "", "<|b", ""]


def test_a_stop_string_counts_only_once_it_may() -> None:
    stream = TextStream(bytes_as_tokens, ["x"])

    assert stream.push(ord("x"), may_stop=False) == ("x", False)
    assert stream.push(ord("x")) == ("", True)


def test_special_tokens_are_no_text() -> None:
    stream = TextStream(bytes_as_tokens)

    assert [stream.push(token)[0] for token in (65, 300, 66)] == ["A", "", "B"]


def test_an_unfinished_character_at_the_end_is_left_out() -> None:
    stream = TextStream(bytes_as_tokens)

    assert [stream.push(token)[0] for token in (65, 0xE2, 0x82)] == ["A", "", ""]
    assert stream.finish() == ""


def test_bytes_that_never_make_a_character_do_not_hold_up_what_follows() -> None:
    stream = TextStream(bytes_as_tokens)
    text = "".join(stream.push(0x80)[0] for _ in range(40)) + stream.push(65)[0]

    assert text.endswith("A")
    assert len(text) == 41


@pytest.mark.parametrize(("prompt", "expected"), [pytest.param("Hi", " you", id="after-a-word"), pytest.param("", "you", id="first")])
def test_a_blank_that_a_tokenizer_drops_before_its_first_word_is_there_after_a_prompt(prompt: str, expected: str) -> None:
    words = {1: "Hi", 2: "you"}
    stream = TextStream(lambda tokens: " ".join(words[token] for token in tokens), (), [1] if prompt else [])

    assert stream.push(2)[0] == expected
