"""Texts for scenarios: short ones and long ones out of files, mixed, and none of them twice unless repeats are asked for."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

from tokenizers import Tokenizer

from perf.servers.processes import PROJECT

FOLDER = PROJECT / "model_repository" / "text_encoder" / "texts"
QUERIES, PARAGRAPHS = FOLDER / "queries.txt", FOLDER / "pages.txt"
TOKENIZER = PROJECT / "model_repository" / "text_tokenizer" / "1" / "tokenizer.json"

SHORT, LONG = "short", "long"
MAX_TOKENS = 256
"""Longer texts are cut to it: a model that takes 512 would otherwise be asked for more than the others compute."""
EQUAL_TOKENS = 16

MIXES = {"95/5": 0.05, "80/20": 0.2, "equal": 0.0}
"""The share of long ones in what scenarios compare; `equal` has short texts of `EQUAL_TOKENS` tokens and nothing else."""
PAGES = "pages"
"""The mix of long texts only."""
_BLOCK = 20

_SPECIAL_TOKENS = 2
_EXCHANGED_WORDS = 2


class Text(NamedTuple):
    text: str
    tokens: int
    """Number of tokens, [CLS] and [SEP] among them."""
    kind: str


@dataclass(frozen=True, slots=True)
class _Line:
    words: tuple[str, ...]
    tokens: tuple[int, ...]
    """Tokens of each word."""


class Corpus:
    """The lines of one file, and as many texts like them as are wanted."""

    def __init__(self, name: str, kind: str, lines: Sequence[_Line]) -> None:
        if not lines:
            raise SystemExit(f"{name} has no text of the length that is wanted")
        self.name = name
        self.kind, self._lines = kind, lines
        self._words: dict[int, list[str]] = defaultdict(list)
        for word, tokens in sorted({pair for line in lines for pair in zip(line.words, line.tokens, strict=True)}):
            self._words[tokens].append(word)

    def fresh(self, random: Random) -> Text:
        """A line with two of its words exchanged for others of as many tokens: lengths stay, and hardly two texts are the same."""
        line = random.choice(self._lines)
        words = list(line.words)
        for at in random.sample(range(len(words)), min(_EXCHANGED_WORDS, len(words))):
            words[at] = random.choice(self._words[line.tokens[at]])
        return Text(" ".join(words), sum(line.tokens) + _SPECIAL_TOKENS, self.kind)

    def of_length(self, tokens: int) -> Corpus:
        """Texts of so many: each line with what follows it, cut there, if that is between two words."""
        cut = [_cut([*line.words, *after.words], [*line.tokens, *after.tokens], tokens) for line, after in pairwise(self._lines)]
        lines = [line for line in cut if sum(line.tokens) + _SPECIAL_TOKENS == tokens]
        return Corpus(f"{self.name}, cut to {tokens} tokens", self.kind, lines)

    def describe(self) -> str:
        """Say the corpus's name, and how long its texts are."""
        lengths = sorted(sum(line.tokens) + _SPECIAL_TOKENS for line in self._lines)
        p5, p50, p95 = (lengths[int(share * (len(lengths) - 1))] for share in (0.05, 0.5, 0.95))
        return f"{self.name}: {len(lengths)} texts, {p5}/{p50}/{p95} tokens (p5/p50/p95)"


class Texts:
    """Short and long texts, in the mixes of `MIXES`."""

    def __init__(self, queries: Path, paragraphs: Path, tokenizer: Path = TOKENIZER) -> None:
        reader = Tokenizer.from_file(str(tokenizer))
        reader.no_padding()
        reader.no_truncation()
        self._tokenizer = reader
        self._short, self._long = _read(queries, SHORT, reader), _read(paragraphs, LONG, reader)
        self._equal = self._short.of_length(EQUAL_TOKENS)

    def describe(self) -> list[str]:
        """What a report says of them."""
        return [corpus.describe() for corpus in (self._short, self._long, self._equal)]

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, as the model takes them."""
        return [encoding.ids[:MAX_TOKENS] for encoding in self._tokenizer.encode_batch_fast(texts)]

    def deck(self, mix: str, *, repeats: float = 0.0, seed: int | str) -> Iterator[Text]:
        """Texts without end; `repeats` of them came before. Equal seeds give equal texts."""
        random, dealt = Random(f"{mix} {repeats} {seed}"), {SHORT: list[Text](), LONG: list[Text]()}
        for corpus in self._shuffled(mix, random):
            earlier = dealt[corpus.kind]  # of the kind whose turn it is, so that the mix stays
            if earlier and random.random() < repeats:
                yield random.choice(earlier)
                continue
            text = corpus.fresh(random)
            if repeats:
                earlier.append(text)
            yield text

    def _shuffled(self, mix: str, random: Random) -> Iterator[Corpus]:
        """Yield where each text comes from. Each block has its exact share of long ones: few requests are then as dear as many."""
        long_count = _BLOCK if mix == PAGES else round(_BLOCK * MIXES[mix])
        short = self._equal if mix == "equal" else self._short
        while True:
            yield from random.sample([self._long] * long_count + [short] * (_BLOCK - long_count), _BLOCK)


def _read(path: Path, kind: str, tokenizer: Tokenizer) -> Corpus:
    """Read one text a line, the last column where there are tabs, gzip or not; headings of WikiText (`= Title =`) are none."""
    if not path.exists():
        raise SystemExit(f"{path} is missing: name another file with --queries or --paragraphs")
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    texts = [line.rpartition("\t")[2].split() for line in data.decode().splitlines()]
    texts = [words for words in texts if words and words[0] != "="]
    vocabulary = sorted({word for words in texts for word in words})
    encodings = tokenizer.encode_batch_fast(vocabulary, add_special_tokens=False)
    tokens = {word: len(encoding) for word, encoding in zip(vocabulary, encodings, strict=True)}
    return Corpus(path.name, kind, [_cut(words, [tokens[word] for word in words]) for words in texts])


def _cut(words: Sequence[str], tokens: Sequence[int], most: int = MAX_TOKENS) -> _Line:
    count = end = 0
    while end < len(words) and count + tokens[end] <= most - _SPECIAL_TOKENS:
        count += tokens[end]
        end += 1
    return _Line(tuple(words[:end]), tuple(tokens[:end]))
