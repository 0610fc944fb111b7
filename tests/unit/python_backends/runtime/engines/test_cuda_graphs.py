"""Recorded modules: on a device that only pretends to record, and (marked gpu) on one that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from python_backends.runtime.engines.buckets import Buckets
from python_backends.runtime.engines.cuda_graphs import CudaGraphs, Graphs, RecordedModule, buckets_for
from python_backends.runtime.execution import Array
from python_backends.runtime.interface import Interface, TensorSpec

INTERFACE = Interface(
    inputs=(TensorSpec("IDS", "TYPE_INT64", ("batch", "length")), TensorSpec("MASK", "TYPE_INT64", ("batch", "length"))),
    outputs=(TensorSpec("SUM", "TYPE_INT64", ("batch",)), TensorSpec("DOUBLE", "TYPE_INT64", ("batch", "length"))),
)
BUCKETS = Buckets({"batch": [1, 4], "length": [8, 16]})


def module(ids: Tensor, mask: Tensor) -> Sequence[Tensor]:
    """A model whose output does not depend on padding, like an encoder's."""
    return (ids * mask).sum(dim=1), 2 * ids


@dataclass
class PretendedGraphs:
    """Fake device on the CPU: replays by computing again in place; work outside of the stream is an error."""

    recorded: list[tuple[int, ...]] = field(default_factory=list)
    replayed: int = 0
    synchronized: int = 0
    entered: bool = False

    @contextmanager
    def stream(self) -> Iterator[None]:
        assert not self.entered, "two at a time"
        self.entered = True
        try:
            yield
        finally:
            self.entered = False

    def host_tensor(self, array: Array) -> Tensor:
        assert self.entered
        return torch.from_numpy(array)

    def device_tensor(self, tensor: Tensor) -> Tensor:
        assert self.entered
        return tensor.clone()

    def record(self, compute: Callable[[], Sequence[Tensor]]) -> tuple[Sequence[Tensor], Callable[[], object]]:
        outputs = compute()
        self.recorded.append(tuple(outputs[1].shape))

        def replay() -> None:
            assert self.entered
            self.replayed += 1
            for static, fresh in zip(outputs, compute(), strict=True):
                static.copy_(fresh)

        return outputs, replay

    def synchronize(self) -> None:
        self.synchronized += 1


def arrays(batch: int, length: int, first: int = 1) -> list[Array]:
    return [np.arange(first, first + batch * length).reshape(batch, length), np.ones((batch, length), np.int64)]


def check(recorded: RecordedModule, given: list[Array]) -> None:
    total, double = recorded(given)

    np.testing.assert_array_equal(total, given[0].sum(axis=1))
    np.testing.assert_array_equal(double, 2 * given[0])


def test_every_bucket_is_recorded_in_advance_the_largest_first() -> None:
    graphs = PretendedGraphs()

    RecordedModule(module, INTERFACE, graphs, BUCKETS)

    assert graphs.recorded == [(4, 16), (4, 8), (1, 16), (1, 8)]


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (1, 9), (2, 3), (4, 16)])
def test_what_a_bucket_holds_is_replayed_and_cut_to_its_own_shape(shape: tuple[int, int]) -> None:
    graphs = PretendedGraphs()
    recorded = RecordedModule(module, INTERFACE, graphs, BUCKETS)

    check(recorded, arrays(*shape))

    assert (graphs.replayed, graphs.synchronized) == (1, 1)


@pytest.mark.parametrize("shape", [(5, 1), (1, 17), (9, 40)])
def test_what_no_bucket_holds_is_run_as_it_is(shape: tuple[int, int]) -> None:
    graphs = PretendedGraphs()

    check(RecordedModule(module, INTERFACE, graphs, BUCKETS), arrays(*shape))

    assert graphs.replayed == 0


def test_nothing_of_a_larger_request_is_left_for_a_smaller_one() -> None:
    recorded = RecordedModule(module, INTERFACE, PretendedGraphs(), BUCKETS)

    for shape in [(4, 16), (2, 9), (3, 16), (2, 12)]:
        check(recorded, arrays(*shape, first=shape[1]))


def test_answers_outlive_the_next_replay() -> None:
    recorded = RecordedModule(module, INTERFACE, PretendedGraphs(), BUCKETS)

    total, _ = recorded(arrays(1, 8))
    recorded(arrays(1, 8, first=100))

    assert total.tolist() == [36]


def test_threads_take_turns() -> None:
    recorded = RecordedModule(module, INTERFACE, PretendedGraphs(), BUCKETS)
    requests = [arrays(1 + index % 5, 1 + index % 20, first=index) for index in range(60)]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda given: check(recorded, given), requests))


def test_a_call_that_fails_does_not_block_the_next() -> None:
    recorded = RecordedModule(module, INTERFACE, PretendedGraphs(), BUCKETS)

    with pytest.raises(ValueError, match="zip"):
        recorded(arrays(1, 3)[:1])
    with pytest.raises(RuntimeError):
        recorded([np.ones((5, 3), np.int64), np.ones((5, 4), np.int64)])

    check(recorded, arrays(1, 3))


@pytest.mark.parametrize(
    ("max_batch_size", "batches"),
    [
        pytest.param(8, [1, 2, 4, 8], id="a-power-of-two"),
        pytest.param(6, [1, 2, 4, 6], id="no-power-of-two"),
        pytest.param(1, [1], id="one"),
        pytest.param(0, [1, 2, 4, 8, 16, 32, 64], id="not-batched-by-the-server"),
    ],
)
def test_batches_go_up_to_what_the_configuration_allows(max_batch_size: int, batches: list[int]) -> None:
    assert buckets_for(INTERFACE, max_batch_size).sizes["batch"] == batches


def test_lengths_go_up_to_what_the_model_takes_but_not_on_for_ever() -> None:
    short = Interface(INTERFACE.inputs, INTERFACE.outputs, {"length": 40})

    assert buckets_for(short, 8).sizes["length"] == [16, 24, 32, 40]
    assert buckets_for(INTERFACE, 8).sizes["length"][-1] == 256
    assert len(list(buckets_for(INTERFACE, 64))) == 63


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU, or a CPU build of PyTorch")
def test_a_real_gpu_records_and_replays() -> None:
    graphs: Graphs = CudaGraphs(torch.device("cuda", 0))
    recorded = RecordedModule(module, INTERFACE, graphs, BUCKETS)

    for shape in [(1, 1), (4, 16), (2, 9), (5, 1), (1, 17), (3, 16)]:
        check(recorded, arrays(*shape, first=shape[1]))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda length: check(recorded, arrays(2, length)), range(1, 21)))
