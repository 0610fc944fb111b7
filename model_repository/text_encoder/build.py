"""Recipes of `text_encoder`: all-MiniLM-L6-v2 from token ids to unit vectors, in the variants that its configuration can ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from python_backends.export import minilm, tensorrt_engine
from python_backends.export.agreement import embed_one_by_one, embed_padded, require_agreement
from python_backends.export.progress import Progress
from python_backends.export.recipe import Agreement, Calibration, Gate, Recipe, Serving
from python_backends.export.sentence_model import SentenceModel
from python_backends.export.sentence_trial import BATCH_SIZE, SentenceTrial
from python_backends.runtime.machine import gpu_name

HERE = Path(__file__).parent
SENTENCES = HERE / "texts" / "sentences.txt"
SIMILARITY = HERE / "texts" / "similarity.tsv"
CALIBRATION = Calibration(HERE / "texts" / "calibration.txt", texts=400)

# The first with LayerNormalization as one operator; ONNX Runtime since 1.12 and TensorRT since 8.6 read it.
OPSET = 17

# FP32 against FP32 differs by rounding only; the published model moves by more than this between library versions.
MINIMUM_COSINE = 0.9999

MODEL = SentenceModel(weights=minilm.WEIGHTS, config=minilm.CONFIG, tokenizer=minilm.TOKENIZER, max_tokens=256, opset=OPSET)
# Of config.pbtxt: latencies are measured as they will be served.
PARAMETERS = {"session.intra_op.spin_duration_us": "20"}
TRIAL = SentenceTrial(MODEL, name="text_encoder", sentences=SENTENCES, similarity=SIMILARITY, parameters=PARAMETERS)

# The limits of `int8` are those that `auto` asks of every variant; where one does better, falling back to them would be a defect.
EXACT = Gate(cosine_p1_at_least=MINIMUM_COSINE, spearman_loss_at_most=0.001)
HALF_PRECISION = Gate(cosine_p1_at_least=0.999, spearman_loss_at_most=0.005)
INT8 = Gate(cosine_p1_at_least=0.99, spearman_loss_at_most=0.01)
# It turns vectors further than INT8 does, which rankings hardly show: `auto` leaves it alone, and who wants it asks for it by name.
PRUNED = Gate(cosine_p1_at_least=0.85, spearman_loss_at_most=0.01)

# What pruning leaves of a layer's 1,536 feed-forward neurons and 12 heads. STS benchmark, dev, Spearman lost with INT8: 0.2 % so,
# 0.8 % with 10 heads.
KEEP_NEURONS, KEEP_HEADS = 0.75, 12

# (batch, length) at least, best and at most, of the engine's two profiles; the runtime takes the first that a batch fits into.
ENGINE_PROFILES = (((1, 1), (32, 32), (256, 64)), ((1, 1), (32, 128), (256, 256)))


def build_fp32(directory: Path, progress: Progress) -> Agreement:
    """Write model.onnx and measure it against PyTorch, and padded batches against single sentences."""
    _read(progress)
    with progress.step("export to ONNX and fuse"):
        (directory / "model.onnx").write_bytes(MODEL.fused_onnx)
    return _check_onnx(progress)


def build_int8(directory: Path, progress: Progress) -> Agreement:
    """Write model.onnx with INT8 products."""
    _read(progress)
    _write_int8(MODEL.fused_onnx, directory, progress)
    return {}


def build_pruned(directory: Path, progress: Progress) -> Agreement:
    """Write model.onnx with fewer neurons and heads, then INT8 products."""
    _read(progress)
    with progress.step(f"prune, calibrating on {CALIBRATION.texts} texts"):
        from python_backends.export.prune import prune

        pruned = prune(MODEL.encoder, MODEL.tokenize(CALIBRATION.read()), keep_neurons=KEEP_NEURONS, keep_heads=KEEP_HEADS)
    with progress.step("export to ONNX and fuse"):
        from python_backends.export.fuse import fuse_bert
        from python_backends.export.sentence_encoder import export_to_onnx

        head_size = MODEL.configuration["hidden_size"] // MODEL.configuration["num_attention_heads"]
        fused = fuse_bert(export_to_onnx(pruned, opset=OPSET), heads=KEEP_HEADS, hidden_size=KEEP_HEADS * head_size)
    _write_int8(fused, directory, progress)
    return {}


def _write_int8(fused: bytes, directory: Path, progress: Progress) -> None:
    with progress.step(f"quantise, calibrating on {CALIBRATION.texts} texts"):
        from python_backends.export.quantize import quantize

        (directory / "model.onnx").write_bytes(quantize(fused, MODEL.tokenize(CALIBRATION.read())))


def build_bf16(directory: Path, progress: Progress) -> Agreement:
    """Write model.pt2 with weights and products in bfloat16."""
    return _build_program(directory, progress, mode="")


def build_compiled(directory: Path, progress: Progress) -> Agreement:
    """Write the same for torch.compile and CUDA graphs."""
    return _build_program(directory, progress, mode="compiled_cuda_graphs")


def build_tensorrt(directory: Path, progress: Progress) -> Agreement:
    """Write model.plan, whose layer norms do not overflow in bfloat16 as they do in FP16."""
    from python_backends.export.tensorrt_engine import FILENAME, Profile, build_engine

    _read(progress)
    with progress.step("build the engine"):
        profiles = [Profile(*shapes) for shapes in ENGINE_PROFILES]
        build_engine(MODEL.onnx, directory / FILENAME, precision="bf16", profiles=profiles)
    return {}


def _build_program(directory: Path, progress: Progress, *, mode: str) -> Agreement:
    _read(progress)
    with progress.step("export the PyTorch program"):
        from python_backends.export.torch_program import export_program

        export_program(MODEL.encoder, directory, precision="bf16", mode=mode)
    return {}


def _needs_torch_on_a_gpu() -> str | None:
    if gpu_name() is None:
        return "it needs an NVIDIA GPU and a CUDA build of PyTorch"
    from python_backends.export.torch_program import missing_for_gpu

    return missing_for_gpu()


def _read(progress: Progress) -> None:
    with progress.step("read and verify the weights"):
        _ = MODEL.encoder


def _check_onnx(progress: Progress) -> Agreement:
    from python_backends.export.sentence_encoder import embed_with_onnxruntime, embed_with_torch

    token_ids = MODEL.tokenize(SENTENCES.read_text().splitlines())
    with progress.step(f"compare {len(token_ids)} sentences with PyTorch"):
        embed = embed_with_onnxruntime(MODEL.fused_onnx)
        single = embed_one_by_one(embed, token_ids)
        reference = embed_one_by_one(embed_with_torch(MODEL.encoder), token_ids)
        against_torch = require_agreement("ONNX against PyTorch", reference, single, minimum=MINIMUM_COSINE)
    with progress.step("compare padded batches with single sentences"):
        padded = embed_padded(embed, token_ids, batch_size=BATCH_SIZE)
        against_single = require_agreement("padded batches against single sentences", single, padded, minimum=MINIMUM_COSINE)
    return {"onnx_against_pytorch": against_torch, "padded_against_single": against_single}


def _recipe(
    build: Callable[[Path, Progress], Agreement], serving: Serving, *, steps: Sequence[str], libraries: Sequence[str], **more: Any
) -> Recipe:
    """`steps` are the modules of python_backends/export, and `libraries` the packages, that this variant depends on and not all do."""
    modules = [minilm.SOURCE.with_name(f"{step}.py") for step in ("minilm", "sentence_model", "sentence_encoder", *steps)]
    return Recipe(
        build=build,
        provenance=minilm.provenance(minilm.WEIGHTS),
        libraries=("safetensors", "tokenizers", "torch", "transformers", *libraries),
        sources=(Path(__file__), SENTENCES, SIMILARITY, *modules),
        settings={"opset": str(OPSET), **PARAMETERS},
        serving=serving,
        **more,
    )


RECIPES = {
    "fp32": _recipe(
        build_fp32,
        Serving("onnxruntime", "model.onnx", TRIAL, EXACT),
        steps=["fuse"],
        libraries=["onnx", "onnxruntime"],
    ),
    "int8": _recipe(
        build_int8,
        Serving("onnxruntime", "model.onnx", TRIAL, INT8),
        steps=["fuse", "quantize"],
        libraries=["onnx", "onnxruntime"],
        calibration=CALIBRATION,
    ),
    "pruned": _recipe(
        build_pruned,
        Serving("onnxruntime", "model.onnx", TRIAL, PRUNED),
        steps=["fuse", "prune", "quantize"],
        libraries=["onnx", "onnxruntime"],
        calibration=CALIBRATION,
    ),
    "bf16": _recipe(
        build_bf16,
        Serving("torch", "model.pt2", TRIAL, HALF_PRECISION),
        steps=["torch_program"],
        libraries=[],
    ),
    "compiled": _recipe(
        build_compiled,
        Serving("torch", "model.pt2", TRIAL, HALF_PRECISION, device="gpu", needs=_needs_torch_on_a_gpu),
        steps=["torch_program"],
        libraries=[],
    ),
    "tensorrt": _recipe(
        build_tensorrt,
        Serving("tensorrt", "model.plan", TRIAL, HALF_PRECISION, device="gpu", needs=tensorrt_engine.missing_for_gpu),
        steps=["tensorrt_engine"],
        libraries=["onnx", "tensorrt"],
    ),
}
