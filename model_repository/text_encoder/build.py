"""Recipe of `text_encoder`: all-MiniLM-L6-v2 as one ONNX file, from token ids to unit vectors."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from python_backends.export import minilm
from python_backends.export.agreement import embed_one_by_one, embed_padded, require_agreement
from python_backends.export.progress import Progress
from python_backends.export.recipe import Agreement, Recipe

HERE = Path(__file__).parent
SENTENCES = HERE / "sentences.txt"

# The first with LayerNormalization as one operator; ONNX Runtime since 1.12 and TensorRT since 8.6 read it.
OPSET = 17

# FP32 against FP32 differs by rounding only; the published model moves by more than this between library versions.
MINIMUM_COSINE = 0.9999

# As many neighbours as lets short sentences meet long ones.
BATCH_SIZE = 8


def build(directory: Path, progress: Progress) -> Agreement:
    """Write model.onnx and measure it against PyTorch, and padded batches against single sentences."""
    with progress.step("import PyTorch and transformers"):
        # Here and not above, so that an up-to-date model costs none of these seconds.
        from python_backends.export import sentence_encoder
    with progress.step("read and verify the weights"):
        encoder = sentence_encoder.load_sentence_encoder(minilm.WEIGHTS.read(), minilm.CONFIG.read())
        token_ids = _tokenize(minilm.TOKENIZER.read())
    with progress.step("export to ONNX"):
        model = sentence_encoder.export_to_onnx(encoder, opset=OPSET)
        (directory / "model.onnx").write_bytes(model)
    with progress.step(f"compare {len(token_ids)} sentences with PyTorch"):
        embed = sentence_encoder.embed_with_onnxruntime(model)
        single = embed_one_by_one(embed, token_ids)
        reference = embed_one_by_one(sentence_encoder.embed_with_torch(encoder), token_ids)
        against_torch = require_agreement("ONNX against PyTorch", reference, single, minimum=MINIMUM_COSINE)
    with progress.step("compare padded batches with single sentences"):
        padded = embed_padded(embed, token_ids, batch_size=BATCH_SIZE)
        against_single = require_agreement("padded batches against single sentences", single, padded, minimum=MINIMUM_COSINE)
    return {"onnx_against_pytorch": against_torch, "padded_against_single": against_single}


def _tokenize(tokenizer_json: bytes) -> list[list[int]]:
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    return [encoding.ids for encoding in tokenizer.encode_batch(SENTENCES.read_text().splitlines())]


RECIPE = Recipe(
    build=build,
    provenance=minilm.provenance(minilm.WEIGHTS),
    libraries=("onnx", "onnxruntime", "safetensors", "tokenizers", "torch", "transformers"),
    sources=(Path(__file__), SENTENCES, minilm.SOURCE, minilm.SOURCE.with_name("sentence_encoder.py")),
    settings={"opset": str(OPSET)},
)
