"""The texts that variants are calibrated on, judged by and loaded with: their form, their spread, and that no text serves two purposes."""

from __future__ import annotations

import unicodedata
from collections import Counter
from pathlib import Path

import pytest

TEXTS = Path(__file__).parents[3] / "model_repository" / "text_encoder" / "texts"
LEVELS = [half / 2 for half in range(11)]
PLAIN = ["calibration.txt", "queries.txt", "pages.txt"]


def lines_of(name: str) -> list[str]:
    return (TEXTS / name).read_bytes().decode().removesuffix("\n").split("\n")


def pairs() -> list[tuple[float, str, str]]:
    rows = [line.split("\t") for line in lines_of("similarity.tsv")]
    return [(float(score), first, second) for score, first, second in rows]


def texts_of(name: str) -> list[str]:
    return [text for _, *both in pairs() for text in both] if name == "similarity.tsv" else lines_of(name)


def words(text: str) -> int:
    return len(text.split())


def folded(text: str) -> str:
    """Two texts that differ in case, punctuation or spacing alone are the same text to an uncased model."""
    return " ".join("".join(c if c.isalnum() else " " for c in text.casefold()).split())


@pytest.mark.parametrize("name", ["similarity.tsv", *PLAIN])
def test_every_text_is_one_trimmed_printable_line_of_composed_unicode(name: str) -> None:
    for text in texts_of(name):
        assert text == text.strip() != ""
        assert text.isprintable()
        assert text == unicodedata.normalize("NFC", text)
        assert "  " not in text


@pytest.mark.parametrize("name", ["similarity.tsv", *PLAIN])
def test_files_end_with_exactly_one_newline(name: str) -> None:
    content = (TEXTS / name).read_bytes()
    assert content.endswith(b"\n")
    assert not content.endswith(b"\n\n")
    assert b"\r" not in content


def test_similarity_has_three_columns_and_scores_in_half_steps_from_0_to_5() -> None:
    for line in lines_of("similarity.tsv"):
        assert line.count("\t") == 2, line
    assert {score for score, _, _ in pairs()} == set(LEVELS)


def test_scores_are_spread_so_that_no_level_decides_the_rank_correlation() -> None:
    counts = Counter(score for score, _, _ in pairs())
    total = sum(counts.values())
    assert total >= 300
    assert min(counts.values()) >= 15
    assert max(counts.values()) <= total * 0.15


def test_similarity_sentences_are_of_3_to_40_words_and_some_are_long() -> None:
    lengths = [words(text) for text in texts_of("similarity.tsv")]
    assert min(lengths) >= 3
    assert max(lengths) <= 40
    assert sum(length >= 20 for length in lengths) >= 30


def test_some_pairs_are_questions_on_both_sides() -> None:
    assert sum(first.endswith("?") and second.endswith("?") for _, first, second in pairs()) >= 15


def test_some_pairs_share_all_their_words_and_yet_differ_in_meaning() -> None:
    same_words = [s for s, first, second in pairs() if sorted(folded(first).split()) == sorted(folded(second).split())]
    assert len(same_words) >= 4
    assert max(same_words) <= 3


def test_some_pairs_share_hardly_a_word_and_yet_mean_the_same() -> None:
    def shared(first: str, second: str) -> float:
        a, b = set(folded(first).split()), set(folded(second).split())
        return len(a & b) / len(a | b)

    assert sum(score >= 4.5 and shared(first, second) < 0.2 for score, first, second in pairs()) >= 15


def test_calibration_has_short_texts_long_sentences_and_paragraphs() -> None:
    lengths = [words(text) for text in texts_of("calibration.txt")]
    total = len(lengths)
    assert total >= 400
    assert min(lengths) >= 3
    assert max(lengths) <= 200
    assert 0.5 <= sum(length <= 20 for length in lengths) / total <= 0.7
    assert 0.2 <= sum(20 < length <= 45 for length in lengths) / total <= 0.3
    assert 0.12 <= sum(length >= 80 for length in lengths) / total <= 0.2


@pytest.mark.parametrize(
    ("kind", "at_least"),
    [
        pytest.param(lambda text: text.endswith("?"), 60, id="questions"),
        pytest.param(lambda text: any(c.isdigit() for c in text), 60, id="numbers"),
        pytest.param(lambda text: not text.isascii(), 20, id="accents and other languages"),
        pytest.param(lambda text: "https://" in text, 2, id="addresses"),
        pytest.param(lambda text: "_" in text or "`" in text, 4, id="code"),
    ],
)
def test_calibration_is_of_many_kinds(kind, at_least: int) -> None:
    assert sum(map(kind, texts_of("calibration.txt"))) >= at_least


def test_queries_are_300_texts_of_4_to_12_words() -> None:
    queries = texts_of("queries.txt")
    assert len(queries) == 300
    assert all(4 <= words(query) <= 12 for query in queries)


def test_pages_are_30_paragraphs_of_120_to_230_words() -> None:
    pages = texts_of("pages.txt")
    assert len(pages) == 30
    assert all(120 <= words(page) <= 230 for page in pages)


@pytest.mark.parametrize("name", PLAIN)
def test_no_file_has_a_text_twice(name: str) -> None:
    assert [text for text, n in Counter(map(folded, texts_of(name))).items() if n > 1] == []


def test_no_pair_is_there_twice_nor_has_the_same_text_on_both_sides() -> None:
    sides = [frozenset({folded(first), folded(second)}) for _, first, second in pairs()]
    assert len(set(sides)) == len(sides)
    assert all(len(side) == 2 for side in sides)


def test_no_sentence_is_in_two_pairs() -> None:
    assert [text for text, n in Counter(map(folded, texts_of("similarity.tsv"))).items() if n > 1] == []


def test_no_text_is_in_two_files() -> None:
    files = [{folded(text) for text in texts_of(name)} for name in ["similarity.tsv", *PLAIN]]
    assert sum(map(len, files)) == len(set().union(*files))
