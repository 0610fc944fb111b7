"""A WordPiece tokenizer with a handful of words."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing

VOCABULARY = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "##s", "[FILL]"])}
CLS, SEP, THE, CAT, SAT, S = (VOCABULARY[word] for word in ("[CLS]", "[SEP]", "the", "cat", "sat", "##s"))


def save_tokenizer(path: Path, *, pads_with: str | None = None) -> Path:
    """Write it as a tokenizer.json that, like published ones, truncates and pads by itself: to 4 tokens, with `pads_with`."""
    tokenizer = Tokenizer(WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    tokenizer.enable_truncation(4)
    if pads_with:
        tokenizer.enable_padding(length=4, pad_id=VOCABULARY[pads_with], pad_token=pads_with)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path
