"""Execution providers: the native backend's order, its option names in ONNX Runtime's Python spelling, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from python_backends.runtime.engines.execution_providers import CPU, Provider, execution_providers
from python_backends.runtime.errors import ConfigError
from tests.unit.python_backends.configs import config, parameters

ALL = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "OpenVINOExecutionProvider", "CPUExecutionProvider")
CUDA: Provider = ("CUDAExecutionProvider", {"device_id": "1"})


def accelerated(*, gpu: list[dict[str, Any]] | None = None, cpu: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"execution_accelerators": {"gpu_execution_accelerator": gpu or [], "cpu_execution_accelerator": cpu or []}}


def providers(kind: str = "GPU", available: tuple[str, ...] = ALL, **changes: Any) -> list[Provider]:
    return execution_providers(config(**changes), kind=kind, device_id=1, available=available)


def tensorrt_options(**values: str) -> dict[str, str]:
    optimization = accelerated(gpu=[{"name": "tensorrt", "parameters": values}])
    (name, options), *_ = providers(optimization=optimization)
    assert name == "TensorrtExecutionProvider"
    assert options.pop("device_id") == "1"
    return options


def test_a_cpu_instance_uses_the_cpu_alone() -> None:
    assert providers("CPU") == [CPU]


def test_a_gpu_instance_uses_cuda_on_its_device_and_the_cpu_for_the_rest() -> None:
    assert providers("GPU") == [CUDA, CPU]


def test_gpu_accelerators_do_not_concern_a_cpu_instance() -> None:
    assert providers("CPU", optimization=accelerated(gpu=[{"name": "tensorrt"}])) == [CPU]


def test_tensorrt_comes_before_cuda_wherever_it_is_listed() -> None:
    chosen = providers(optimization=accelerated(gpu=[{"name": "cuda", "parameters": {"use_tf32": "0"}}, {"name": "tensorrt"}]))

    assert chosen == [
        ("TensorrtExecutionProvider", {"device_id": "1"}),
        ("CUDAExecutionProvider", {"device_id": "1", "use_tf32": "0"}),
        CPU,
    ]


@pytest.mark.parametrize("kind", ["CPU", "GPU"])
def test_openvino_serves_either_kind(kind: str) -> None:
    chosen = providers(kind, optimization=accelerated(cpu=[{"name": "openvino"}]))

    assert chosen[-2:] == [("OpenVINOExecutionProvider", {"device_type": "CPU"}), CPU]


@pytest.mark.parametrize(
    ("values", "options"),
    [
        pytest.param({}, {}, id="defaults"),
        pytest.param({"precision_mode": "FP32"}, {}, id="fp32"),
        pytest.param({"precision_mode": "FP16"}, {"trt_fp16_enable": "True"}, id="fp16"),
        pytest.param({"precision_mode": "INT8"}, {"trt_int8_enable": "True"}, id="int8"),
        pytest.param({"precision_mode": "BF16"}, {"trt_bf16_enable": "True"}, id="bf16"),
        pytest.param({"max_workspace_size_bytes": "1073741824"}, {"trt_max_workspace_size": "1073741824"}, id="renamed"),
        pytest.param(
            {"int8_use_native_calibration_table": "1"}, {"trt_int8_use_native_calibration_table": "True"}, id="renamed-and-boolean"
        ),
        pytest.param({"trt_engine_cache_enable": "true"}, {"trt_engine_cache_enable": "True"}, id="boolean-word"),
        pytest.param({"trt_timing_cache_enable": "0"}, {"trt_timing_cache_enable": "False"}, id="boolean-number"),
        pytest.param({"trt_profile_min_shapes": "X:1x32"}, {"trt_profile_min_shapes": "X:1x32"}, id="as-it-is"),
    ],
)
def test_tensorrt_options_are_spelt_for_the_python_api(values: dict[str, str], options: dict[str, str]) -> None:
    assert tensorrt_options(**values) == options


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param(
            {"precision_mode": "FP8"}, "unsupported precision mode 'FP8' is requested, known are: FP32, FP16, BF16, INT8", id="mode"
        ),
        pytest.param({"workspace": "1"}, "unknown parameter 'workspace' is provided for TensorRT", id="unknown"),
        pytest.param({"trt_sparsity_enable": "si"}, "'trt_sparsity_enable' must be true or false, not 'si'", id="boolean"),
    ],
)
def test_wrong_tensorrt_options_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tensorrt_options(**values)


def test_plain_cuda_parameters_still_count_and_an_accelerators_own_win() -> None:
    settings = parameters(cudnn_conv_algo_search="2", arena_extend_strategy="1", gpu_mem_limit="1000")
    optimization = accelerated(gpu=[{"name": "cuda", "parameters": {"gpu_mem_limit": "2000"}}])

    assert providers(parameters=settings, optimization=optimization)[0] == (
        "CUDAExecutionProvider",
        {
            "device_id": "1",
            "cudnn_conv_algo_search": "DEFAULT",
            "arena_extend_strategy": "kSameAsRequested",
            "gpu_mem_limit": "2000",
        },
    )


def test_a_cuda_parameter_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="unsupported arena_extend_strategy value '7' is requested, known are: 0, 1"):
        providers(parameters=parameters(arena_extend_strategy="7"))


@pytest.mark.parametrize(
    ("optimization", "known"),
    [
        pytest.param(accelerated(gpu=[{"name": "warp"}]), "tensorrt, cuda", id="gpu"),
        pytest.param(accelerated(cpu=[{"name": "warp"}]), "openvino", id="cpu"),
    ],
)
def test_an_unknown_accelerator_is_refused_with_those_that_are_known(optimization: dict[str, Any], known: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown Execution Accelerator 'warp' is requested, known are: {known}"):
        providers(optimization=optimization)


@pytest.mark.parametrize(
    ("kind", "optimization", "missing"),
    [
        pytest.param("GPU", {}, "CUDAExecutionProvider", id="cuda"),
        pytest.param("GPU", accelerated(gpu=[{"name": "tensorrt"}]), "TensorrtExecutionProvider", id="tensorrt"),
        pytest.param("CPU", accelerated(cpu=[{"name": "openvino"}]), "OpenVINOExecutionProvider", id="openvino"),
    ],
)
def test_a_provider_that_is_not_installed_is_refused_with_those_that_are(kind: str, optimization: dict[str, Any], missing: str) -> None:
    installed = ("AzureExecutionProvider", "CPUExecutionProvider")

    with pytest.raises(ConfigError, match=rf"model 'm' needs {missing}, .* \(it has AzureExecutionProvider, CPUExecutionProvider\)"):
        providers(kind, installed, optimization=optimization)
