"""Tokenizes the texts of many requests together; each request is padded only to its own longest text.

The encoder batches requests of any lengths, so padding to a common length here would only add work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from python_backends.runtime.errors import ConfigError, RequestError
from python_backends.runtime.execution import Answer, Array, Tensors
from python_backends.runtime.model_config import ModelConfig
from python_backends.runtime.text import decode_utf8
from python_backends.text_tokenizer.known_words import KnownWords, looks_at_words

DEFAULT_FILENAME = "tokenizer.json"

# `max_seq_length` in all-MiniLM-L6-v2's sentence_bert_config.json, with which its published scores were made;
# its tokenizer.json says 128.
DEFAULT_MAX_TOKENS = 256

# Characters of a text that are read for each token that a row may have. A tokenizer reads the whole text before it
# truncates: 64 pages take 14 ms, so 128 MB would take some 20 s, in which no other request is tokenized, and gigabytes for
# all their tokens. Texts have 4 to 5 characters a token, so nothing changes but for one that is mostly blanks, or of words
# that are longer than this.
CHARS_PER_TOKEN = 64


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """Hugging Face tokenizer, of which `encode` truncates; this class pads, with `pad_id`, to a multiple of
    `pad_to_multiple_of` tokens.
    """

    encode: Callable[[Iterable[str]], Sequence[Array]]
    """Returns the token ids INT64 [length] of each text."""
    vocabulary: int
    """Tokens that there are; ids are below it."""
    pad_id: int
    pad_to_multiple_of: int
    max_tokens: int
    """Length in tokens to which texts are truncated."""

    def tokenize(self, requests: Sequence[Array]) -> list[Answer]:
        """Return one answer per TEXT [batch, 1]: INPUT_IDS and ATTENTION_MASK INT64 [batch, length], or a
        RequestError.

        A request gets a RequestError if one of its texts is not UTF-8, or if it has none.
        """
        texts = [_decode(request, self.max_tokens * CHARS_PER_TOKEN) for request in requests]
        encoded = iter(self.encode([text for request in texts if isinstance(request, list) for text in request]))
        return [self._pad([next(encoded) for _ in request]) if isinstance(request, list) else request for request in texts]

    def check_tokens(self, inputs: Tensors) -> Tensors:
        """Return the inputs if INPUT_IDS [batch, length] are valid token ids within the length limit. Raises
        RequestError.
        """
        ids = inputs["INPUT_IDS"]
        if ids.shape[1] > self.max_tokens:
            raise RequestError(f"INPUT_IDS has {ids.shape[1]} tokens a row; the model takes at most {self.max_tokens}")
        lowest, highest = ids.min(initial=0), ids.max(initial=0)
        if lowest < 0 or highest >= self.vocabulary:
            wrong = lowest if lowest < 0 else highest
            raise RequestError(f"INPUT_IDS must be token ids from 0 to {self.vocabulary - 1}; this request has {wrong}")
        return inputs

    def _pad(self, rows: Sequence[Array]) -> Tensors:
        shape = (len(rows), -(-max(map(len, rows)) // self.pad_to_multiple_of) * self.pad_to_multiple_of)
        input_ids = np.full(shape, self.pad_id, dtype=np.int64)
        attention_mask = np.zeros(shape, dtype=np.int64)
        for row, ids in enumerate(rows):
            input_ids[row, : len(ids)] = ids
            attention_mask[row, : len(ids)] = 1
        return {"INPUT_IDS": input_ids, "ATTENTION_MASK": attention_mask}


def load_tokenizer(version_directory: Path, config: ModelConfig) -> TextTokenizer:
    """Load the version's tokenizer file with the configuration's limits.

    Raises:
        ConfigError: The file is missing or not a tokenizer, or a limit makes no sense.
    """
    path = version_directory / (config.default_model_filename or DEFAULT_FILENAME)
    max_tokens = _at_least(config, "max_tokens", default=DEFAULT_MAX_TOKENS, minimum=3)
    pad_to_multiple_of = _at_least(config, "pad_to_multiple_of", default=1, minimum=1)
    if not path.is_file():
        raise ConfigError(f"unable to find '{path}'")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:
        # The library raises plain Exception.
        raise ConfigError(f"model '{config.name}': '{path}' is not a tokenizer.json: {exc}") from exc
    pad_id = tokenizer.padding["pad_id"] if tokenizer.padding else 0
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    encode = KnownWords(tokenizer, max_tokens).encode if looks_at_words(tokenizer) else partial(_encode, tokenizer)
    return TextTokenizer(encode, tokenizer.get_vocab_size(), pad_id, pad_to_multiple_of, max_tokens)


def _encode(tokenizer: Tokenizer, texts: Iterable[str]) -> list[Array]:
    return [np.array(encoding.ids, np.int64) for encoding in tokenizer.encode_batch_fast([*texts])]


def _at_least(config: ModelConfig, key: str, *, default: int, minimum: int) -> int:
    value = config.integer(key, default)
    if value < minimum:
        raise ConfigError(f"model '{config.name}': parameter '{key}' must be at least {minimum}, not {value}")
    return value


def _decode(request: Array, most_chars: int) -> list[str] | RequestError:
    if not request.size:
        return RequestError("TEXT must have at least one text; this request has none")
    try:
        return [text[:most_chars] for text in decode_utf8(request, "TEXT")]
    except RequestError as exc:
        return exc
