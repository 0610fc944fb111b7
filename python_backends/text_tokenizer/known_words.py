"""Token ids of words that were seen before, for tokenizers that look at each word by itself.

BERT's does: it joins nothing that a blank parts, and parts what punctuation does. So the ids of a text are those of its
words, one after the other, and nearly all words have come before, if not with the same comma. The tokenizer is asked for
those that are new, so the answers are its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, islice

import numpy as np
from tokenizers import Tokenizer

from python_backends.runtime.execution import Array

MOST_WORDS = 65_536
"""Words that are kept, some 15 MB; when there are more, all are forgotten. Those that a language uses every day fit."""
LONGEST_WORD = 40
"""Characters of a word that is kept. What is longer is seldom met again."""

_BLANK = " "
_BLANKS = str.maketrans("\t\n\r", 3 * _BLANK)
_PARTS = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9]")
"""A word's parts between ASCII punctuation, and each of that."""
_WORD_MARK = "_"
"""Where tokens of a tokenizer's own have to stand by themselves, it belongs to the word."""
_ID = np.dtype(np.int64)

Learn = Callable[[Sequence[str]], dict[str, bytes]]


class KnownWords:
    """Encodes texts as a `tokenizer` does which truncates to `max_tokens`. Several threads may use it at once."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._before, self._after = _special_tokens(self._tokenizer)
        self._most_bytes = max_tokens * _ID.itemsize - len(self._before + self._after)
        self._marks = {letter for token in _added_tokens(tokenizer) for letter in token if not letter.isalnum()} | {_WORD_MARK}
        self._ids: dict[str, bytes] = {}

    def encode(self, texts: Iterable[str]) -> list[Array]:
        """Return the token ids INT64 [length] of each text, special tokens included, as arrays that cannot be written to."""
        ids = self._look_up([text.translate(_BLANKS).split(_BLANK) for text in texts])
        return [np.frombuffer(self._before + b"".join(each)[: self._most_bytes] + self._after, _ID) for each in ids]

    def _look_up(self, texts: Sequence[Sequence[str]]) -> list[list[bytes]]:
        """Return the ids of the words of each text."""
        try:
            return [[*map(self._ids.__getitem__, words)] for words in texts]
        except KeyError:  # some are new
            known = self._known({*chain(*texts)}, self._by_parts)
        return [[*map(known.__getitem__, words)] for words in texts]

    def _known(self, words: Collection[str], learn: Learn) -> dict[str, bytes]:
        """Return the ids of all these words; those that are new are learnt, and kept."""
        known = {word: ids for word in words if (ids := self._ids.get(word)) is not None}
        new = [word for word in words if word not in known]
        learnt = learn(new) if new else {}
        if len(self._ids) + len(learnt) > MOST_WORDS:
            self._ids.clear()
        short = ((word, ids) for word, ids in learnt.items() if len(word) <= LONGEST_WORD)
        self._ids.update(islice(short, MOST_WORDS))
        return known | learnt

    def _by_parts(self, words: Sequence[str]) -> dict[str, bytes]:
        parts = {word: _PARTS.findall(word) if self._is_plain(word) else [word] for word in words}
        known = self._known({*chain(*parts.values())}, self._by_tokenizer)
        return {word: b"".join(map(known.__getitem__, parts[word])) for word in words}

    def _by_tokenizer(self, words: Sequence[str]) -> dict[str, bytes]:
        encodings = self._tokenizer.encode_batch_fast(words, add_special_tokens=False)
        return {word: _packed(encoding.ids) for word, encoding in zip(words, encodings, strict=True)}

    def _is_plain(self, word: str) -> bool:
        """Whether it is ASCII that can be seen, without the brackets of tokens such as `[MASK]`, which are found before parts are."""
        return word.isascii() and word.isprintable() and self._marks.isdisjoint(word)


def looks_at_words(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer is BERT's: of the parts that never look beyond a blank, and without a token of its own that has one."""
    made_of = json.loads(tokenizer.to_str())
    parts = [(made_of[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    has_blanks = any(letter.isspace() for token in _added_tokens(tokenizer) for letter in token)
    return parts == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and not has_blanks


def _added_tokens(tokenizer: Tokenizer) -> list[str]:
    """The tokenizer's own tokens, as they are written and as they are once texts are normalized."""
    written = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    return [*written, *map(tokenizer.normalizer.normalize_str, written)] if tokenizer.normalizer else written


def _special_tokens(tokenizer: Tokenizer) -> tuple[bytes, bytes]:
    """The ids that are put before a text, and behind it."""
    encoding = tokenizer.encode("a")
    own = encoding.special_tokens_mask.index(0), len(encoding) - encoding.special_tokens_mask[::-1].index(0)
    return _packed(encoding.ids[: own[0]]), _packed(encoding.ids[own[1] :])


def _packed(ids: Sequence[int]) -> bytes:
    return np.array(ids, _ID).tobytes()
