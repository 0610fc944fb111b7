"""Recipes of `text_encoder`: all-MiniLM-L6-v2 from token ids to unit vectors, in the variants that its configuration can ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from python_backends.export.encoders import minilm
from python_backends.export.encoders.sentence_model import SentenceModel
from python_backends.export.encoders.sentence_trial import SentenceTrial
from python_backends.export.progress import Progress
from python_backends.export.recipe import AUTO, Agreement, Calibration, Gate, Recipe, Serving
from python_backends.export.variants import tensorrt_engine
from python_backends.runtime.machine import computes_bfloat16, gpu_name

HERE = Path(__file__).parent
EXPORT = minilm.SOURCE.parents[1]
SENTENCES = HERE / "texts" / "sentences.txt"
SIMILARITY = HERE / "texts" / "similarity.tsv"
CALIBRATION = Calibration(HERE / "texts" / "calibration.txt", texts=400)

MODEL = SentenceModel(weights=minilm.WEIGHTS, config=minilm.CONFIG, tokenizer=minilm.TOKENIZER, max_tokens=256)
# Of config.pbtxt: latencies are measured as they will be served.
PARAMETERS = {"session.intra_op.spin_duration_us": "20"}
TRIAL = SentenceTrial(MODEL, name="text_encoder", sentences=SENTENCES, similarity=SIMILARITY, parameters=PARAMETERS)

# The file that a test has compared with PyTorch: equal weights give equal bytes, so a build need not compare again to know what it has.
FP32_SHA256 = "2d735d57b278aa41311ac4c38e0c8ec2d6baf6d6909ef37d24289b6cee64adb3"

# FP32 against FP32 differs by rounding only; the published model moves by more than this between library versions.
EXACT = Gate(cosine_p1_at_least=0.9999, spearman_loss_at_most=0.001)
HALF_PRECISION = Gate(cosine_p1_at_least=0.999, spearman_loss_at_most=0.005)
# It turns vectors further than INT8 does, which rankings hardly show: `auto` leaves it alone, and who wants it asks for it by name.
PRUNED = Gate(cosine_p1_at_least=0.85, spearman_loss_at_most=0.01)

# What pruning leaves of a layer's 1,536 feed-forward neurons and 12 heads. STS benchmark, dev, Spearman lost with INT8: 0.2 % so,
# 0.8 % with 10 heads.
KEEP_NEURONS, KEEP_HEADS = 0.75, 12

# (batch, length) at least, best and at most, of the engine's two profiles; the runtime takes the first that a batch fits into.
ENGINE_PROFILES = (((1, 1), (32, 32), (256, 64)), ((1, 1), (32, 128), (256, 256)))


def build_fp32(directory: Path, progress: Progress) -> Agreement:
    """Write model.onnx."""
    _read(progress)
    with progress.step("write the graph"):
        (directory / "model.onnx").write_bytes(MODEL.fused_onnx)
    return {}


def build_int8(directory: Path, progress: Progress) -> Agreement:
    """Write model.onnx with INT8 products."""
    _read(progress)
    _write_int8(MODEL.fused_onnx, directory, progress)
    return {}


def build_pruned(directory: Path, progress: Progress) -> Agreement:
    """Write model.onnx with fewer neurons and heads, then INT8 products."""
    _read(progress)
    with progress.step(f"prune, calibrating on {CALIBRATION.texts} texts"):
        from python_backends.export.variants.prune import prune

        texts = MODEL.tokenize(CALIBRATION.read())
        pruned = prune(MODEL.weights, MODEL.shape, texts, keep_neurons=KEEP_NEURONS, keep_heads=KEEP_HEADS)
    _write_int8(MODEL.graph(pruned, fused=True), directory, progress)
    return {}


def _write_int8(fused: bytes, directory: Path, progress: Progress) -> None:
    with progress.step(f"quantise, calibrating on {CALIBRATION.texts} texts"):
        from python_backends.export.variants.quantize import quantize

        (directory / "model.onnx").write_bytes(quantize(fused, MODEL.tokenize(CALIBRATION.read())))


def build_bf16(directory: Path, progress: Progress) -> Agreement:
    """Write model.pt2 with weights and products in bfloat16."""
    return _build_program(directory, progress, mode="")


def build_compiled(directory: Path, progress: Progress) -> Agreement:
    """Write the same for torch.compile and CUDA graphs."""
    return _build_program(directory, progress, mode="compiled_cuda_graphs")


def build_tensorrt(directory: Path, progress: Progress) -> Agreement:
    """Write model.plan, whose layer norms do not overflow in bfloat16 as they do in FP16."""
    from python_backends.export.variants.tensorrt_engine import FILENAME, Profile, build_engine

    _read(progress)
    with progress.step("build the engine"):
        profiles = [Profile(*shapes) for shapes in ENGINE_PROFILES]
        build_engine(MODEL.onnx, directory / FILENAME, precision="bf16", profiles=profiles)
    return {}


def _build_program(directory: Path, progress: Progress, *, mode: str) -> Agreement:
    _read(progress)
    with progress.step("export the PyTorch program"):
        from python_backends.export.variants.torch_program import export_program

        export_program(MODEL.encoder, directory, precision="bf16", mode=mode)
    return {}


def _needs_torch() -> str | None:
    if all(find_spec(name) for name in ("torch", "transformers")):
        return None
    return "it needs PyTorch and transformers: `make models` installs them"


def _needs_torch_on_a_gpu() -> str | None:
    if gpu_name() is None:
        return "it needs an NVIDIA GPU and a CUDA build of PyTorch"
    if missing := _needs_torch():
        return missing
    from python_backends.export.variants.torch_program import missing_for_gpu

    return missing_for_gpu()


def _read(progress: Progress) -> None:
    with progress.step("read and verify the weights"):
        _ = MODEL.weights


def _recipe(
    build: Callable[[Path, Progress], Agreement], serving: Serving, *, steps: Sequence[str], libraries: Sequence[str], **more: Any
) -> Recipe:
    """`steps` are the modules in python_backends/export, and `libraries` the packages, that this variant depends on and not all do."""
    always = ("encoders/minilm", "encoders/sentence_model", "encoders/bert_graph")
    modules = [EXPORT / f"{step}.py" for step in (*always, *steps)]
    return Recipe(
        build=build,
        provenance=minilm.provenance(minilm.WEIGHTS),
        libraries=("onnx", "onnxruntime", "safetensors", "tokenizers", *libraries),
        sources=(Path(__file__), SENTENCES, SIMILARITY, *modules),
        settings=PARAMETERS,
        serving=serving,
        **more,
    )


RECIPES = {
    "fp32": _recipe(
        build_fp32,
        Serving("onnxruntime", "model.onnx", TRIAL, EXACT, sha256=FP32_SHA256),
        steps=[],
        libraries=[],
    ),
    "int8": _recipe(
        build_int8,
        # Where it does no better than `auto` asks, falling back to fp32 would be a defect.
        Serving("onnxruntime", "model.onnx", TRIAL, AUTO),
        steps=["variants/observe", "variants/quantize"],
        libraries=[],
        calibration=CALIBRATION,
    ),
    "pruned": _recipe(
        build_pruned,
        Serving("onnxruntime", "model.onnx", TRIAL, PRUNED),
        steps=["variants/observe", "variants/prune", "variants/quantize"],
        libraries=[],
        calibration=CALIBRATION,
        # `auto` leaves it alone, so that only those pay for it who ask for it.
        on_demand=True,
    ),
    "bf16": _recipe(
        build_bf16,
        Serving("torch", "model.pt2", TRIAL, HALF_PRECISION, needs=_needs_torch),
        steps=["encoders/sentence_encoder", "variants/torch_program"],
        libraries=["torch", "transformers"],
        # Emulated it is several times slower than fp32, so that nobody is served by it, and trying it out takes minutes.
        on_demand=not computes_bfloat16(),
    ),
    "compiled": _recipe(
        build_compiled,
        Serving("torch", "model.pt2", TRIAL, HALF_PRECISION, device="gpu", needs=_needs_torch_on_a_gpu),
        steps=["encoders/sentence_encoder", "variants/torch_program"],
        libraries=["torch", "transformers"],
    ),
    "tensorrt": _recipe(
        build_tensorrt,
        Serving("tensorrt", "model.plan", TRIAL, HALF_PRECISION, device="gpu", needs=tensorrt_engine.missing_for_gpu),
        steps=["variants/tensorrt_engine"],
        libraries=["tensorrt"],
    ),
}
