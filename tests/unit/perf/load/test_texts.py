"""Texts keep the lengths of the files they come from, mixes keep their shares, and only repeats occur twice."""

from __future__ import annotations

import gzip
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from perf.load.texts import EQUAL_TOKENS, LONG, MAX_TOKENS, SHORT, Texts

VOCABULARY = {word: number for number, word in enumerate(["[UNK]", "[CLS]", "[SEP]"])}


@pytest.fixture
def texts(tmp_path: Path) -> Texts:
    tokenizer = Tokenizer(WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()  # splits at punctuation: some words are two tokens
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    random = Random(0)
    words = [f"w{number}" for number in range(400)] + [f"w{number}!" for number in range(100)]
    queries = [f"{number}\t{' '.join(random.choices(words[:400], k=length))}" for number, length in enumerate([5, 9, 14, 14, 20])]
    pages = [" = Title = ", "", " ".join(random.choices(words, k=90)), " ".join(random.choices(words, k=700))]
    (tmp_path / "queries.tsv").write_text("\n".join(queries))
    (tmp_path / "pages.txt.gz").write_bytes(gzip.compress("\n".join(pages).encode()))
    return Texts(tmp_path / "queries.tsv", tmp_path / "pages.txt.gz", tmp_path / "tokenizer.json")


@pytest.mark.parametrize(("mix", "long_count"), [("95/5", 10), ("80/20", 40), ("equal", 0)])
def test_a_mix_has_its_shares_and_says_its_lengths(texts: Texts, mix: str, long_count: int) -> None:
    dealt = list(islice(texts.deck(mix, seed=1), 200))
    assert Counter(text.kind for text in dealt) == Counter({SHORT: 200 - long_count, LONG: long_count})
    lengths = [len(ids) for ids in texts.token_ids([text.text for text in dealt])]
    assert lengths == [text.tokens for text in dealt]
    assert max(lengths) == (MAX_TOKENS if long_count else max(lengths))
    if mix == "equal":
        assert set(lengths) == {EQUAL_TOKENS}


def test_nothing_occurs_twice_without_repeats(texts: Texts) -> None:
    dealt = [text.text for seed in range(3) for text in islice(texts.deck("95/5", seed=seed), 1000)]
    assert len(set(dealt)) >= len(dealt) - 30  # lines of five words cannot always differ


def test_repeats_are_as_many_as_asked_for_and_keep_the_mix(texts: Texts) -> None:
    dealt = list(islice(texts.deck("80/20", repeats=0.3, seed=1), 2000))
    assert 0.25 < 1 - len({text.text for text in dealt}) / len(dealt) < 0.36
    assert sum(text.kind == LONG for text in dealt) == 400


def test_equal_seeds_deal_equal_texts(texts: Texts) -> None:
    first, again, other = (list(islice(texts.deck("95/5", seed=seed), 50)) for seed in (1, 1, 2))
    assert first == again != other


def test_headings_and_blank_lines_are_no_texts(texts: Texts) -> None:
    assert texts.describe()[1].startswith("pages.txt.gz: 2 texts, ")


def test_a_missing_file_says_what_to_do(tmp_path: Path, texts: Texts) -> None:
    with pytest.raises(SystemExit, match="--queries or --paragraphs"):
        Texts(tmp_path / "none.txt", tmp_path / "queries.tsv", tmp_path / "tokenizer.json")


def test_no_text_of_sixteen_tokens_is_said(tmp_path: Path, texts: Texts) -> None:
    (tmp_path / "short.txt").write_text("w1 w2\nw3")
    with pytest.raises(SystemExit, match="cut to 16 tokens has no text"):
        Texts(tmp_path / "short.txt", tmp_path / "queries.tsv", tmp_path / "tokenizer.json")
