"""ONNX Runtime execution providers for a model configuration, in the order in which the native backend
appends them.

Follows `ModelState::LoadModel` in onnxruntime_backend r24.10: on a GPU TensorRT if configured, then always
CUDA; on GPU and CPU OpenVINO if configured; the CPU last, for operators that no other provider supports.
Pure: the available providers are an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.model_config import Accelerator, ModelConfig, parse_boolean

Provider = tuple[str, dict[str, str]]

CPU: Provider = ("CPUExecutionProvider", {})

# Triton's name of an option -> ONNX Runtime's; names that start with "trt_" are the same in both.
TENSORRT_RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
TENSORRT_PRECISION: Mapping[str, Mapping[str, str]] = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "True"},
    "BF16": {"trt_bf16_enable": "True"},
    "INT8": {"trt_int8_enable": "True"},
}
# The C API takes "1" for these, the Python API only "True", and falls back to the CPU on anything else.
TENSORRT_BOOLEANS = {
    "trt_build_heuristics_enable",
    "trt_context_memory_sharing_enable",
    "trt_cuda_graph_enable",
    "trt_detailed_build_log",
    "trt_dla_enable",
    "trt_dump_ep_context_model",
    "trt_dump_subgraphs",
    "trt_engine_cache_enable",
    "trt_force_sequential_engine_build",
    "trt_force_timing_cache",
    "trt_int8_use_native_calibration_table",
    "trt_layer_norm_fp32_fallback",
    "trt_sparsity_enable",
    "trt_timing_cache_enable",
}

# CUDA options that the native backend still accepts as plain model parameters, with the meanings of their
# numbers.
CUDA_PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    "gpu_mem_limit": {},
    "do_copy_in_default_stream": {},
}


def execution_providers(config: ModelConfig, *, kind: str, device_id: int, available: Collection[str]) -> list[Provider]:
    """Return providers with their options, in order of preference, for an instance of `kind` ("CPU", "GPU")
    on `device_id`.

    Raises:
        ConfigError: An accelerator is unknown, has an unknown option, or is missing from `available` (the
        installed onnxruntime's).
    """
    providers = _gpu_providers(config, device_id) if kind == "GPU" else []
    providers += [_cpu_accelerator(config, accelerator) for accelerator in config.cpu_accelerators]
    for name, _ in providers:
        if name not in available:
            raise ConfigError(
                f"model '{config.name}' needs {name}, which the installed onnxruntime does not have (it has {', '.join(available)}): "
                "install a build that has it, or change instance_group or execution_accelerators"
            )
    return [*providers, CPU]


def _gpu_providers(config: ModelConfig, device_id: int) -> list[Provider]:
    device = {"device_id": str(device_id)}
    providers: list[Provider] = []
    cuda_options = device | _cuda_parameters(config)
    for accelerator in config.gpu_accelerators:
        if accelerator.name == "tensorrt":
            providers.append(("TensorrtExecutionProvider", device | _tensorrt_options(config, accelerator)))
        elif accelerator.name == "cuda":
            cuda_options |= accelerator.parameters
        else:
            raise _unknown(config, accelerator, "tensorrt, cuda")
    return [*providers, ("CUDAExecutionProvider", cuda_options)]


def _cpu_accelerator(config: ModelConfig, accelerator: Accelerator) -> Provider:
    if accelerator.name != "openvino":
        raise _unknown(config, accelerator, "openvino")
    return ("OpenVINOExecutionProvider", {"device_type": "CPU"})


def _unknown(config: ModelConfig, accelerator: Accelerator, known: str) -> ConfigError:
    return ConfigError(f"model '{config.name}': unknown Execution Accelerator '{accelerator.name}' is requested, known are: {known}")


def _tensorrt_options(config: ModelConfig, accelerator: Accelerator) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in accelerator.parameters.items():
        option = TENSORRT_RENAMED.get(key, key)
        if key == "precision_mode":
            options |= _tensorrt_precision(config, value)
        elif option in TENSORRT_BOOLEANS:
            options[option] = str(parse_boolean(value, f"model '{config.name}': TensorRT parameter '{key}'"))
        elif option.startswith("trt_"):
            options[option] = value
        else:
            raise ConfigError(f"model '{config.name}': unknown parameter '{key}' is provided for TensorRT Execution Accelerator")
    return options


def _tensorrt_precision(config: ModelConfig, mode: str) -> Mapping[str, str]:
    if mode not in TENSORRT_PRECISION:
        known = ", ".join(TENSORRT_PRECISION)
        raise ConfigError(f"model '{config.name}': unsupported precision mode '{mode}' is requested, known are: {known}")
    return TENSORRT_PRECISION[mode]


def _cuda_parameters(config: ModelConfig) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, words in CUDA_PARAMETERS.items():
        if key not in config.parameters:
            continue
        value = config.parameters[key]
        if words and value not in words:
            known = ", ".join(words)
            raise ConfigError(f"model '{config.name}': unsupported {key} value '{value}' is requested, known are: {known}")
        options[key] = words.get(value, value)
    return options
