"""Reading pairs of sentences: the project's own and the STS benchmark's."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_backends.export.encoders.texts import Pair, read_similarity, read_sts_benchmark
from python_backends.export.recipe import BuildError

PROJECT = Path(__file__).resolve().parents[5]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pairs"


def test_similarity_lines_are_score_and_two_sentences(path: Path) -> None:
    # U+2028 ends no line of a file, although `str.splitlines` says so.
    path.write_text('5\tA cat.\tA  \u2028 tom-cat.\n\n0.25\tRain, "heavy".\t雨\n')

    assert read_similarity(path) == [Pair(5.0, "A cat.", "A  \u2028 tom-cat."), Pair(0.25, 'Rain, "heavy".', "雨")]


@pytest.mark.parametrize("line", ["5\tone sentence", "five\ta\tb", "5\ta\tb\tc", "a\tb\t5"])
def test_a_similarity_line_of_another_form_is_named(path: Path, line: str) -> None:
    path.write_text(f"5\ta\tb\n{line}\n")

    with pytest.raises(BuildError, match=f"'{path}', line 2: not two sentences and a number"):
        read_similarity(path)


@pytest.mark.parametrize("header", ["", "sentence1,sentence2,score\n"])
def test_the_benchmarks_rows_are_two_sentences_and_a_score(path: Path, header: str) -> None:
    path.write_text(header + 'A cat.,"A tom-cat, asleep.",4.75\r\n"He said ""no"".",Yes,0.0\n')

    assert read_sts_benchmark(path) == [Pair(4.75, "A cat.", "A tom-cat, asleep."), Pair(0.0, 'He said "no".', "Yes")]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        pytest.param("", "holds no pairs", id="empty"),
        pytest.param("sentence1,sentence2,score\n", "holds no pairs", id="names-only"),
        pytest.param("a,b,1\na,b\n", "line 2: not two sentences and a number", id="two-columns"),
        pytest.param("a,b,1\na,b,c,2\n", "line 2: not two sentences and a number", id="four-columns"),
        pytest.param("a,b,high\n", "line 1: not two sentences and a number", id="no-number"),
        pytest.param('a,b,1\n"a" b,c,1\n', "line 2: ", id="quotes"),
    ],
)
def test_another_file_is_refused_with_its_line(path: Path, content: str, sentence: str) -> None:
    path.write_text(content)

    with pytest.raises(BuildError, match=sentence):
        read_sts_benchmark(path)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_an_error_of_ours(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(BuildError, match=f"'{path}' cannot be read: "):
        read_sts_benchmark(path)


def test_the_projects_own_pairs_can_be_read() -> None:
    pairs = read_similarity(PROJECT / "model_repository" / "text_encoder" / "texts" / "similarity.tsv")

    assert len(pairs) >= 200
    assert {0.0, 5.0} <= {pair.score for pair in pairs} <= {score / 4 for score in range(21)}
