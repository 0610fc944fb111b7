from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.errors import InvalidRequest
from control_plane.tuning.domain.request_mix import is_json, parse_json, parse_texts, requests_of


def sent(mix: str) -> list[str]:
    entries = json.loads(requests_of(parse_texts(mix), "TEXT"))["data"]
    assert all(list(entry) == ["TEXT"] and len(entry["TEXT"]) == 1 for entry in entries)
    return [entry["TEXT"][0] for entry in entries]


@pytest.mark.parametrize(
    ("mix", "texts"),
    [
        pytest.param("95\tshort\n5\tlong", [(95.0, "short"), (5.0, "long")], id="weighted"),
        pytest.param("one\ntwo\n", [(1.0, "one"), (1.0, "two")], id="plain"),
        pytest.param("# a note\n\n2.5\ta\n  \nb", [(2.5, "a"), (1.0, "b")], id="notes, blank lines, both kinds"),
        pytest.param("1\ta\tb", [(1.0, "a\tb")], id="a tab in the text"),
        pytest.param("12 monkeys\nx\ty", [(1.0, "12 monkeys"), (1.0, "x\ty")], id="a number that is no weight"),
        pytest.param("a\r\nb\r\n", [(1.0, "a"), (1.0, "b")], id="lines of Windows"),
        pytest.param("1\t", [(1.0, "")], id="an empty text"),
    ],
)
def test_reads_texts(mix: str, texts: list[tuple[float, str]]) -> None:
    assert parse_texts(mix) == texts


@pytest.mark.parametrize("mix", ["", "\n\n", "# only notes", "0\ta\n0\tb"])
def test_a_mix_without_texts_is_refused(mix: str) -> None:
    with pytest.raises(InvalidRequest, match="the mix has no texts; write WEIGHT<TAB>TEXT"):
        parse_texts(mix)


def test_texts_come_by_weight_and_mixed() -> None:
    texts = sent("95\tshort\n5\tlong")
    assert Counter(texts) == {"short": 191, "long": 10}
    assert texts == sent("95\tshort\n5\tlong"), "the same order each time"
    assert sorted(texts) != texts, "not in blocks"


def test_the_rarest_comes_once_and_what_has_no_weight_never() -> None:
    assert Counter(sent("100000\ta\n1\tb\n0\tc")) == {"a": 200, "b": 1}


def test_many_texts_all_come() -> None:
    assert Counter(sent("\n".join(f"text {number}" for number in range(500)))).total() == 501


@pytest.mark.parametrize("concurrency", [1, 2, 8, 32, 64])
def test_every_connection_of_perf_analyzer_comes_to_every_text(concurrency: int) -> None:
    """Return the entries of the n-th caller: every `concurrency`-th, from the n-th on, over and over."""
    texts = sent("95\tshort\n5\tlong")
    for first in range(concurrency):
        assert Counter(texts[(first + step * concurrency) % len(texts)] for step in range(len(texts))) == Counter(texts)


def test_unicode_stays_itself() -> None:
    assert set(sent("東京 🚀")) == {"東京 🚀"}


@given(st.lists(st.tuples(st.integers(1, 1000), st.text(st.characters(exclude_categories=["Cc", "Cs"]))), min_size=1, max_size=30))
def test_every_text_with_a_weight_comes(texts: list[tuple[int, str]]) -> None:
    assert set(sent("".join(f"{weight}\t{text}\n" for weight, text in texts))) == {text for _, text in texts}


def test_json_passes_as_it_is() -> None:
    text = ' {"data": [{"IDS": {"content": [1, 2], "shape": [2]}}]}\n'
    assert is_json(text)
    assert parse_json(text) == text
    assert not is_json("95\ttext")


@pytest.mark.parametrize("text", ['{"data": []}', '{"inputs": [1]}', '{"data": {}}'])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="must be perf_analyzer's JSON"):
        parse_json(text)


def test_broken_json_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"the mix is not JSON: .*line 1"):
        parse_json('{"data": [')
