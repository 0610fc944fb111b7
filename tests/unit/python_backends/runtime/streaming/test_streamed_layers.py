"""Language models whose layers take turns in two buffers: on a device that only pretends to, and (marked gpu) on one that does."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from python_backends.runtime.engines.causal_lm import CausalLM, KeyValues, Piece, decoder_layers, load_causal_lm
from python_backends.runtime.errors import ConfigError
from python_backends.runtime.streaming.layer_plan import LayerPlan
from python_backends.runtime.streaming.streamed_layers import ALIGNMENT, CudaDevice, Device, stream_layers

SHAPE = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4, "max_position_embeddings": 64}
LLAMA = transformers.LlamaConfig(**SHAPE, num_key_value_heads=2, intermediate_size=48)
MODELS = {
    "llama": LLAMA,
    "tied": transformers.LlamaConfig(**SHAPE, num_key_value_heads=2, intermediate_size=48, tie_word_embeddings=True),
    "gpt-neox": transformers.GPTNeoXConfig(**SHAPE, intermediate_size=48),
    "qwen2": transformers.Qwen2Config(**SHAPE, num_key_value_heads=2, intermediate_size=48),
    "mistral": transformers.MistralConfig(**SHAPE, num_key_value_heads=2, intermediate_size=48, sliding_window=40),
}
PROMPTS = ([5, 9, 2, 44, 17, 3, 8], [60], [7, 7, 8, 90, 1, 2, 3, 4, 5, 6, 11, 12])
_NAN = 0xFF
"""Each byte of a number that is none, in FP32, FP16 and BF16."""


class PretendedDevice:
    """Fake device on the CPU whose copies are as early and as late as they may be: they overwrite their target at once, with what is
    no number, and are carried out when something waits for them.
    """

    def __init__(self) -> None:
        self.host_bytes = self.device_bytes = self.copies = 0
        self._begun: list[Callable[[], object]] = []
        self._done = 0

    def host_memory(self, nbytes: int) -> Tensor:
        self.host_bytes += nbytes
        return torch.full((nbytes,), _NAN, dtype=torch.uint8)

    def device_memory(self, nbytes: int) -> Tensor:
        self.device_bytes += nbytes
        return torch.full((nbytes,), _NAN, dtype=torch.uint8)

    def copy(self, source: Tensor, target: Tensor) -> int:
        assert len(source) == len(target)
        self.copies += 1
        target.fill_(_NAN)
        self._begun.append(lambda: target.copy_(source))
        return len(self._begun)

    def wait(self, event: int) -> None:
        while self._done < event:
            self._begun[self._done]()
            self._done += 1


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(MODELS[request.param], tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(LLAMA, tmp_path_factory.mktemp("llama"))


def save(config: Any, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    torch.manual_seed(3)
    transformers.AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(folder)
    return folder


def loaded(folder: Path) -> CausalLM:
    return load_causal_lm(folder, kind="CPU", device_id=0)


def layer_bytes(model: CausalLM) -> int:
    return size(decoder_layers(model._model)[0].parameters())


def size(parameters: Any) -> int:
    return sum(-(-parameter.nbytes // ALIGNMENT) * ALIGNMENT for parameter in parameters)


def streamed(folder: Path, device: Device, buffers: int) -> tuple[CausalLM, LayerPlan]:
    """A model with as much memory beside its embedding and head as so many layers take."""
    model = loaded(folder)
    layers = decoder_layers(model._model)
    others = size(model._model.parameters()) - len(layers) * layer_bytes(model)
    return model, stream_layers(model._model, layers, others + buffers * layer_bytes(model), device)


def logits(model: CausalLM) -> list[Tensor]:
    """Logits of three sequences that are read together, and then write three tokens each."""
    pieces = [Piece(prompt, KeyValues(len(prompt) + 3)) for prompt in PROMPTS]
    found = []
    for _ in range(3):
        found.append(model.forward(pieces))
        pieces = [Piece([int(row.argmax())], piece.kept) for row, piece in zip(found[-1], pieces, strict=True)]
    return [each.cpu() for each in found]


def same(found: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """But for how a CPU's products round, which depends on where in memory weights are."""
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in zip(found, right, strict=True))


@pytest.mark.parametrize(
    ("folder", "buffers", "count"),
    [*(("llama", *each) for each in ((2, 5), (3, 4), (4, 3), (5, 0))), *((name, 2, 5) for name in MODELS if name != "llama")],
    indirect=["folder"],
)
def test_a_streamed_model_answers_as_a_whole_one_time_and_again(folder: Path, buffers: int, count: int) -> None:
    right = logits(loaded(folder))
    model, plan = streamed(folder, PretendedDevice(), buffers)

    assert len(plan.streamed) == count
    assert same(logits(model), right)
    assert same(logits(model), right)


def test_memory_is_what_was_planned_and_each_layer_is_copied_once_a_run(llama: Path) -> None:
    device = PretendedDevice()
    model, plan = streamed(llama, device, 3)

    assert device.device_bytes == plan.held_bytes <= size(loaded(llama)._model.parameters()) - 2 * layer_bytes(model)
    assert device.host_bytes == 4 * layer_bytes(model)
    assert device.copies == 2  # for the first run
    model.forward([Piece([1], KeyValues(1))])
    assert device.copies == 2 + 4


def test_all_that_fits_stays_without_a_copy(llama: Path) -> None:
    device = PretendedDevice()
    model, plan = streamed(llama, device, 5)
    model.forward([Piece([1], KeyValues(1))])

    assert (device.host_bytes, device.copies) == (0, 0)
    assert device.device_bytes == plan.held_bytes == size(model._model.parameters())


def test_nothing_is_left_where_the_weights_were(llama: Path) -> None:
    """Each parameter is in the memory that was asked for: neither on the heap nor in the mapped file."""
    model, _ = streamed(llama, PretendedDevice(), 3)

    storages = {parameter.untyped_storage().data_ptr() for parameter in model._model.parameters()}
    assert len(storages) == 1


class Failure(RuntimeError):
    pass


@pytest.mark.parametrize("at", range(5))
def test_after_a_run_that_failed_the_next_is_right(llama: Path, at: int) -> None:
    right = logits(loaded(llama))
    model, _ = streamed(llama, PretendedDevice(), 2)

    def fail(*_: Any) -> None:
        raise Failure

    handle = decoder_layers(model._model)[at].mlp.register_forward_hook(fail)  # type: ignore[union-attr]
    with pytest.raises(Exception, match="the language model failed"):
        logits(model)
    handle.remove()

    assert same(logits(model), right)


class Failing(PretendedDevice):
    """Device of which one copy fails."""

    fails_at = -1

    def copy(self, source: Tensor, target: Tensor) -> int:
        if self.copies == self.fails_at:
            self.fails_at = -1
            raise Failure
        return super().copy(source, target)


@pytest.mark.parametrize("at", range(5))
def test_after_a_copy_that_failed_the_next_run_is_right(llama: Path, at: int) -> None:
    right, device = logits(loaded(llama)), Failing()
    model, _ = streamed(llama, device, 2)
    device.fails_at = device.copies + at
    with pytest.raises(Exception, match="the language model failed"):
        logits(model)

    assert same(logits(model), right)


def test_layers_of_different_sizes_share_buffers() -> None:
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 8)) for width in (4, 300, 20, 70, 300, 9)]
    model = nn.Sequential(*layers)
    given = torch.randn(3, 8)
    right = model(given)
    device = PretendedDevice()
    plan = stream_layers(model, layers, 2 * size(layers[1].parameters()) + 3000, device)

    assert 2 < len(plan.streamed) < 6
    with torch.inference_mode():
        assert torch.equal(model(given), right)
        assert torch.equal(model(given), right)


def test_what_cannot_be_streamed_is_refused(llama: Path) -> None:
    with pytest.raises(ConfigError, match="must be at least 1, the embedding, the head and twice the largest layer"):
        streamed(llama, PretendedDevice(), 1)
    shared = nn.Linear(8, 8)
    model = nn.Sequential(shared, nn.Linear(8, 8), nn.Linear(8, 8), shared)
    with pytest.raises(ConfigError, match="a layer shares some of them with another part"):
        stream_layers(model, [*model][:3], 2000, PretendedDevice())
    whole = loaded(llama)._model
    whole.config.num_hidden_layers = 4
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no list of its 4 layers"):
        decoder_layers(whole)


LARGER = transformers.LlamaConfig(
    vocab_size=1000, hidden_size=1024, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4, intermediate_size=4096,
    max_position_embeddings=256, dtype="bfloat16",
)  # fmt: skip
"""A model with layers of 29 MiB each, which take longer to copy than to compute."""
MIB = 1 << 20
WHOLE_MIB = 236
LEAST_MIB = 62


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU, or a CPU build of PyTorch")
    return save(LARGER, tmp_path_factory.mktemp("larger"), torch.bfloat16)


def on_gpu(folder: Path, mib: int | None = None) -> CausalLM:
    return load_causal_lm(folder, kind="GPU", device_id=0, weight_memory_bytes=None if mib is None else mib * MIB)


@pytest.fixture(scope="module")
def right(larger: Path) -> list[Tensor]:
    return logits(on_gpu(larger))


@pytest.mark.gpu
@pytest.mark.parametrize("mib", [LEAST_MIB, LEAST_MIB + 1, 120, 150, 180, 210, WHOLE_MIB - 1, WHOLE_MIB, 1000])
def test_a_gpu_answers_bit_by_bit_as_with_all_weights_and_within_its_budget(larger: Path, right: list[Tensor], mib: int) -> None:
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = on_gpu(larger, mib)

    loading = torch.cuda.max_memory_allocated() - before
    assert loading <= min(mib, WHOLE_MIB) * MIB + 2 * MIB  # PyTorch rounds what it allocates to 2 MiB
    for _ in range(5):
        assert all(torch.equal(one, other) for one, other in zip(logits(model), right, strict=True))
    assert torch.cuda.memory_allocated() - before <= loading + MIB


@pytest.mark.gpu
def test_a_gpu_is_told_what_it_has_no_room_for(larger: Path) -> None:
    with pytest.raises(ConfigError, match=f"must be at least {LEAST_MIB}, the embedding, the head and twice the largest layer"):
        on_gpu(larger, LEAST_MIB - 1)
    with pytest.raises(ConfigError, match="MiB for weights cannot be had on cuda:0"):
        CudaDevice(torch.device("cuda", 0)).device_memory(1 << 50)


@pytest.mark.gpu
def test_two_instances_and_long_prompts_do_not_disturb_each_other(larger: Path, right: list[Tensor]) -> None:
    models = [on_gpu(larger, LEAST_MIB), on_gpu(larger, 150)]
    long = [Piece([number % 1000 for number in range(start, start + 200)], KeyValues(200)) for start in range(16)]

    def many(model: CausalLM) -> bool:
        found = True
        for _ in range(10):
            model.forward([Piece(piece.tokens, KeyValues(200)) for piece in long])
            found &= all(torch.equal(one, other) for one, other in zip(logits(model), right, strict=True))
        return found

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(many, models)] == [True, True]


@pytest.mark.gpu
def test_a_copy_waits_for_what_computes_and_what_computes_next_for_the_copy(larger: Path) -> None:
    device = CudaDevice(torch.device("cuda", 0))
    nbytes = 256 * MIB
    source, target = device.host_memory(nbytes), device.device_memory(nbytes)
    source.fill_(2)
    for _ in range(3):
        target.fill_(1)
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        before = target.sum()
        event = device.copy(source, target)
        assert not event.query()
        device.wait(event)
        after = target.sum()
        assert (int(before), int(after)) == (nbytes, 2 * nbytes)


@pytest.mark.gpu
def test_copies_and_computing_take_place_at_the_same_time(larger: Path) -> None:
    device = CudaDevice(torch.device("cuda", 0))
    source, target = device.host_memory(256 * MIB), device.device_memory(256 * MIB)
    source.fill_(2)
    event = device.copy(source, target)
    torch.cuda._sleep(2_000_000_000)  # a second
    asleep = torch.cuda.current_stream().record_event()
    event.synchronize()
    assert not asleep.query()


@pytest.mark.gpu
def test_what_a_model_had_is_free_once_it_is_gone(larger: Path, right: list[Tensor]) -> None:
    gc.collect()  # what libraries keep for good is there since `right`
    before = torch.cuda.memory_allocated()
    for _ in range(3):  # host memory that is still registered could not be so again
        model = on_gpu(larger, 150)
        model.forward([Piece([1, 2], KeyValues(2))])
        del model
        gc.collect()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() - before < MIB
