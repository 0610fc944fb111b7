"""Recipe of `text_tokenizer`: all-MiniLM-L6-v2's WordPiece tokenizer, as published."""

from __future__ import annotations

from pathlib import Path

from tokenizers import BertWordPieceTokenizer, Tokenizer

from python_backends.export.encoders import minilm
from python_backends.export.progress import Progress
from python_backends.export.recipe import Agreement, BuildError, Recipe

HERE = Path(__file__).parent
SENTENCES = HERE.parent / "text_encoder" / "texts" / "sentences.txt"


def build(directory: Path, progress: Progress) -> Agreement:
    """Write tokenizer.json and check it against a tokenizer made from vocab.txt alone, the form in which BERT was published."""
    with progress.step("read and verify the tokenizer"):
        tokenizer_json = minilm.TOKENIZER.read()
        (directory / "tokenizer.json").write_bytes(tokenizer_json)
    with progress.step("compare with vocab.txt"):
        published = Tokenizer.from_str(tokenizer_json.decode())
        published.no_padding()
        published.no_truncation()
        vocabulary = {word: index for index, word in enumerate(minilm.VOCABULARY.read().decode().splitlines())}
        reference = BertWordPieceTokenizer(vocabulary, lowercase=True)
        sentences = SENTENCES.read_text().splitlines()
        for sentence in sentences:
            if published.encode(sentence).ids != reference.encode(sentence).ids:
                raise BuildError(f"tokenizer.json and vocab.txt disagree on the sentence {sentence!r}: nothing is published")
    return {"tokenizer_json_against_vocab_txt": {"sentences": len(sentences), "identical": len(sentences)}}


RECIPE = Recipe(
    build=build,
    provenance=minilm.provenance(minilm.TOKENIZER),
    libraries=("tokenizers",),
    sources=(Path(__file__), SENTENCES, minilm.SOURCE),
)
