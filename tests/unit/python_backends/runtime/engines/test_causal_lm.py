"""Sequences that are at different places in one forward pass, beside transformers' own generation with the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from python_backends.runtime.engines import half_weights
from python_backends.runtime.engines.causal_lm import WEIGHTS_KEY, CausalLM, CausalLMRuntime, KeyValues, Piece, load_causal_lm
from python_backends.runtime.errors import ConfigError, ExecutionError, RequestError
from python_backends.runtime.machine import CPUINFO, computes_bfloat16

SHAPE = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 64}
PROMPTS = ([5, 9, 2, 44, 17, 3, 8], [60], [7, 7, 8, 90, 1, 2, 3, 4, 5, 6, 11, 12])
LLAMA = transformers.LlamaConfig(**SHAPE, num_key_value_heads=2, intermediate_size=48)
MODELS = {
    "llama": LLAMA,
    "gpt-neox": transformers.GPTNeoXConfig(**SHAPE, intermediate_size=48),
    "qwen2": transformers.Qwen2Config(**SHAPE, num_key_value_heads=2, intermediate_size=48),
    "mistral": transformers.MistralConfig(**SHAPE, num_key_value_heads=2, intermediate_size=48, sliding_window=40),
}
gpu = pytest.mark.gpu


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS.keys())
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(LLAMA, tmp_path_factory.mktemp("llama"))


def save(config: Any, folder: Path) -> Path:
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)  # so that the likeliest token is so by far
    model.save_pretrained(folder)
    return folder


def expected(folder: Path, prompt: list[int], count: int) -> list[int]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        tokens = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0)
    found: list[int] = tokens[0, len(prompt) :].tolist()
    return found


def cpu(folder: Path, **more: Any) -> CausalLM:
    return load_causal_lm(folder, kind="CPU", device_id=0, **more)


def test_sequences_that_join_and_leave_write_what_transformers_writes(folder: Path) -> None:
    model, count = cpu(folder), 8
    kept = [KeyValues(len(prompt) + count) for prompt in PROMPTS]
    written: list[list[int]] = [[] for _ in PROMPTS]
    unread = [[*prompt] for prompt in PROMPTS]
    step = 0
    while any(len(tokens) < count for tokens in written):
        # The second joins in the third step, prompts are read three tokens at a time, and whoever is done leaves.
        there = [row for row in range(len(PROMPTS)) if len(written[row]) < count and (row != 1 or step > 2)]
        pieces = [Piece(unread[row][:3] or [written[row][-1]], kept[row]) for row in there]
        logits = model.forward(pieces)
        for index, row in enumerate(there):
            del unread[row][:3]
            if not unread[row]:
                written[row].append(int(logits[index].argmax()))
        step += 1

    assert written == [expected(folder, prompt, count) for prompt in PROMPTS]


def test_a_window_is_never_left(tmp_path: Path) -> None:
    assert cpu(save(MODELS["mistral"], tmp_path / "mistral")).context == 40


@pytest.mark.parametrize(("weights", "closeness"), [pytest.param("fp16", 0.02, id="fp16"), pytest.param("bf16", 0.3, id="bf16")])
def test_fewer_bits_are_close(llama: Path, weights: str, closeness: float) -> None:
    if weights == "fp16" and not half_weights.is_available():
        pytest.skip("no AVX2")
    exact, rounded = (model.forward([Piece(PROMPTS[0], KeyValues(9))]) for model in (cpu(llama), cpu(llama, weights=weights)))

    assert float((exact - rounded).norm() / exact.norm()) < closeness
    assert not torch.equal(exact, rounded)


def test_a_recipe_says_how_its_weights_are_computed_with(llama: Path, tmp_path: Path) -> None:
    if not half_weights.is_available():
        pytest.skip("no AVX2")
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    document = json.loads((llama / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(document | {WEIGHTS_KEY: "fp16"}))
    piece = [Piece(PROMPTS[0], KeyValues(9))]

    assert torch.equal(cpu(tmp_path).forward(piece), cpu(llama, weights="fp16").forward([Piece(PROMPTS[0], KeyValues(9))]))


def test_bfloat16_is_computed_in_fp32_where_the_cpu_has_none(llama: Path, tmp_path: Path) -> None:
    transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.bfloat16).save_pretrained(tmp_path)

    assert cpu(tmp_path)._model.dtype == (torch.bfloat16 if computes_bfloat16(CPUINFO) else torch.float32)


def test_the_runtime_by_which_recipes_measure(llama: Path) -> None:
    runtime = CausalLMRuntime(cpu(llama))
    ids = np.array([[5, 9, 2], [1, 1, 1]])
    (every,), (last,) = runtime.run(["LOGITS"], {"INPUT_IDS": ids}), runtime.run(["NEXT_LOGITS"], {"INPUT_IDS": ids})

    assert every.shape == (2, 3, 97)
    np.testing.assert_allclose(every[:, -1], last, atol=1e-4)
    with pytest.raises(RequestError, match="longer than the model's context of 64 tokens"):
        runtime.run(["NEXT_LOGITS"], {"INPUT_IDS": np.ones((1, 65), np.int64)})


def test_a_model_that_fails_says_so_in_one_line(llama: Path) -> None:
    with pytest.raises(ExecutionError, match="the language model failed: "):
        cpu(llama).forward([Piece([1000], KeyValues(2))])  # no such token
    with pytest.raises(ExecutionError, match="the language model failed: "):
        cpu(llama).forward([Piece([1, 2, 3], KeyValues(2))])  # no room


def test_what_cannot_be_loaded_says_why(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json that can be read"):
        cpu(tmp_path)
    with pytest.raises(ConfigError, match="'weights' must be one of auto, fp32, fp16, bf16, not 'int4'"):
        cpu(llama, weights="int4")
    (tmp_path / "config.json").write_bytes((llama / "config.json").read_bytes())
    with pytest.raises(ConfigError, match="transformers cannot load"):
        cpu(tmp_path)
    falcon = transformers.FalconConfig(**{**SHAPE, "num_hidden_layers": 1}, new_decoder_architecture=False, alibi=False)
    with pytest.raises(ConfigError):
        cpu(save(falcon, tmp_path / "falcon"))


def test_code_in_a_folder_is_not_run(llama: Path, tmp_path: Path) -> None:
    document = json.loads((llama / "config.json").read_text())
    document |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ConfigError, match="transformers cannot load"):
        cpu(tmp_path)

    assert not (tmp_path / "ran").exists()


@gpu
def test_on_a_gpu_it_writes_the_same(llama: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU, or a CPU build of PyTorch")
    on_gpu = load_causal_lm(llama, weights="fp32", kind="GPU", device_id=0)
    here, there = (model.forward([Piece(prompt, KeyValues(20)) for prompt in PROMPTS]) for model in (cpu(llama), on_gpu))

    assert torch.equal(here.argmax(dim=-1), there.argmax(dim=-1).cpu())


def test_a_gpu_that_is_not_there_is_said(llama: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ConfigError, match="PyTorch here has no CUDA"):
        load_causal_lm(llama, kind="GPU", device_id=0)
