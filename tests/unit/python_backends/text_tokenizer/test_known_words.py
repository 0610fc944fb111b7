"""Texts whose words are known have the ids that the tokenizer itself gives them."""

from __future__ import annotations

import random
import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer, Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit
from tokenizers.processors import BertProcessing

from python_backends.text_tokenizer import known_words
from python_backends.text_tokenizer.known_words import KnownWords, looks_at_words
from python_backends.text_tokenizer.tokenizer import load_tokenizer
from tests.unit.python_backends.configs import config, parameters

MAX_TOKENS = 12
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [*string.ascii_lowercase, "中", "ß", ",", ".", "["]
VOCABULARY = {token: index for index, token in enumerate([*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS)])}
# What BERT's tokenizer removes, takes apart or parts, other blanks, and tokens of its own.
PIECES = [
    "(cat),",
    "s.a_b",
    "cat",
    "Cats",
    "é",
    "\u0301",
    "中",
    "ß",
    ",",
    "🐈",
    "\t",
    "\n",
    "\u00a0",
    "\u2028",
    "\x1c",
    "\0",
    "\ufeff",
    "\x0b",
    "[MASK]",
    "[SEP]",
]
TEXT = st.text() | st.lists(st.sampled_from(PIECES) | st.just(" "), max_size=30).map("".join)


def bert(*, normalizer: object = None, splits: object = None, added: str = "[MASK]", lstrip: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(WordPiece(VOCABULARY, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizer or BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = splits or BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(["[SEP]", AddedToken(added, lstrip=lstrip)])
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


TOKENIZER = bert()


def lists(known: KnownWords, texts: list[str]) -> list[list[int]]:
    return [ids.tolist() for ids in known.encode(texts)]


def by_itself(texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in TOKENIZER.encode_batch(texts)]


@given(texts=st.lists(TEXT, max_size=4))
@example(
    texts=[
        "",
        " ",
        "cat  sat ",
        "\u0301 cat",
        "the\x1ccat",
        "a.\x1cb",
        "a\x0bb",
        "a [MASK] b[SEP]c",
        "x,[MASK].",
        "cats" * 60,
        "cats " * 60,
    ]
)
def test_ids_are_the_tokenizers_own(texts: list[str]) -> None:
    known = KnownWords(TOKENIZER, MAX_TOKENS)

    for _ in range(2):  # all words are new first, and then known
        assert lists(known, texts) == by_itself(texts)


@pytest.mark.parametrize("text", ["URL_x", "x_URL", "url_", "(URL)", "a.URL,b"])
def test_tokens_that_have_to_stand_by_themselves_are_found_where_the_tokenizer_finds_them(text: str) -> None:
    tokenizer = bert()
    tokenizer.add_tokens([AddedToken("URL", single_word=True, normalized=False)])

    assert lists(KnownWords(tokenizer, MAX_TOKENS), [text]) == [tokenizer.encode(text).ids]


def test_a_token_is_found_as_texts_are_normalized() -> None:
    tokenizer = bert()
    tokenizer.add_tokens([AddedToken("a≠b", normalized=True)])

    assert lists(KnownWords(tokenizer, MAX_TOKENS), ["xa=b a=b"]) == [tokenizer.encode("xa=b a=b").ids]


def test_known_words_are_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownWords(TOKENIZER, MAX_TOKENS)
    first = lists(known, ["the cat sat"])
    monkeypatch.setattr(known, "_tokenizer", None)

    assert lists(known, ["the cat sat"]) == first
    assert lists(known, ["sat the"]) == by_itself(["sat the"])


def test_parts_of_known_words_make_others(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownWords(TOKENIZER, MAX_TOKENS)
    lists(known, ["the (cat) sat.\tHere,\nnow"])
    monkeypatch.setattr(known, "_tokenizer", None)

    assert lists(known, ["the, cat. (sat now) Here"]) == by_itself(["the, cat. (sat now) Here"])


def test_words_are_kept_up_to_a_limit_and_longer_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_words, "MOST_WORDS", 10)
    known = KnownWords(TOKENIZER, MAX_TOKENS)
    words = ["".join(random.Random(number).choices(string.ascii_lowercase, k=number % 60)) for number in range(200)]

    for at in range(0, len(words), 4):
        text = [" ".join(words[at : at + 4])]
        assert lists(known, text) == by_itself(text)
        assert len(known._ids) <= 10
        assert all(len(word) <= known_words.LONGEST_WORD for word in known._ids)
    many = [" ".join(string.ascii_lowercase)]
    assert lists(known, many) == by_itself(many)
    assert len(known._ids) <= 10


def test_threads_do_not_take_words_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_words, "MOST_WORDS", 20)
    known = KnownWords(TOKENIZER, MAX_TOKENS)
    texts = [" ".join(random.Random(number).choices(string.ascii_lowercase, k=8)) + f" {'cat' * (number % 9)}" for number in range(400)]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda text: lists(known, [text]), texts)) == [[ids] for ids in by_itself(texts)]


def test_only_a_tokenizer_that_never_looks_beyond_a_blank_is_asked_for_words() -> None:
    assert looks_at_words(TOKENIZER)
    assert not looks_at_words(bert(normalizer=Lowercase()))
    assert not looks_at_words(bert(splits=WhitespaceSplit()))
    assert not looks_at_words(bert(added="New York"))
    assert not looks_at_words(bert(added="New\tYork"))


@pytest.mark.parametrize("added", ["[MASK]", "new york"])
def test_models_are_served_as_their_tokenizer_says(tmp_path: Path, added: str) -> None:
    tokenizer = bert(added=added)
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    served = load_tokenizer(tmp_path, config(default_model_filename="", parameters=parameters(max_tokens=str(MAX_TOKENS))))

    text = "a new york [MASK] cat"
    assert [ids.tolist() for ids in served.encode([text])] == [tokenizer.encode(text).ids]
