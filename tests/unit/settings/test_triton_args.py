from __future__ import annotations

import re

import pytest

from control_plane.core.errors import StartupError
from control_plane.settings import load_settings


def given(*flags: str) -> list[str]:
    return load_settings({"triton_arg": list(flags)}).triton.triton_arg


@pytest.mark.parametrize(
    "flag",
    [
        "--rate-limit=execution_count",
        "--rate-limit-resource=R1:4:0",
        "--cache-directory=/opt/caches",
        "--backend-config=python,shm-default-byte-size=4194304",
        "--backend-config=onnxruntime,default-max-batch-size=8",
        "--host-policy=gpu_0,numa-node=1",
        "--metrics-config=summary_latencies=true",
        "--http-thread-count=16",
        "--log-verbose=1",
        "--pinned-memory-pool-byte-size=0",
        "--disable-auto-complete-config",
    ],
)
def test_what_is_tritons_own_affair_is_passed_on(flag: str) -> None:
    assert given(flag) == [flag]


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--model-repository=/m", "--model-repository must not be set: models come from --model-repository"),
        ("--model-control-mode=poll", "models are loaded by --load"),
        ("--load-model=*", "models are loaded by --load"),
        ("--http-port=9000", "--triton-transport says"),
        ("--grpc-address=0.0.0.0", "--triton-transport says"),
        ("--allow-metrics=false", "--triton-transport says"),
        ("--grpc-use-ssl=true", "--tls-certificate"),
        ("--http-restricted-api=health:a=b", "TIDEGATE_LOCK_MODEL_CONTROL"),
        ("--grpc-header-forward-pattern=x", "--header-forward-pattern sets both"),
        ("--model-config-name=h100", "TIDEGATE_MODEL_CONFIG_NAME"),
        ("--backend-directory=/b", "TIDEGATE_PYTHON_BACKENDS"),
        ("--backend-config=python,shm-region-prefix-name=x", "what a killed Triton leaves behind"),
        ("--backend-config=python,stub-timeout-seconds=1", "TIDEGATE_LOAD_TIMEOUT_S"),
        ("--host-policy=cpu,cpu-cores=0-1", "--model-cpus"),
        ("--exit-timeout-secs=60", "TIDEGATE_DRAIN_TIMEOUT_S"),
        ("--cache-config=local,size=1048576", "--cache-bytes"),
        ("--allow-sagemaker=true", "it would open a port"),
        ("--log-file=/tmp/x", "triton/triton.log"),
        ("rate-limit=off", "write --NAME=VALUE"),
        ("--rate-limit off", "write --NAME=VALUE"),
        ("", "write --NAME=VALUE"),
    ],
)
def test_what_a_setting_of_ours_says_is_refused_with_its_name(flag: str, says: str) -> None:
    with pytest.raises(StartupError, match=rf"^--triton-arg: .*{re.escape(says)}"):
        given("--rate-limit=off", flag)


def test_as_a_variable_they_are_written_as_in_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_TRITON_ARG", "--rate-limit=execution_count '--trace-config=triton,file=/my traces/t'")
    assert load_settings().triton.triton_arg == ["--rate-limit=execution_count", "--trace-config=triton,file=/my traces/t"]
    monkeypatch.setenv("TIDEGATE_TRITON_ARG", "--rate-limit='off")
    with pytest.raises(StartupError, match="TIDEGATE_TRITON_ARG: No closing quotation"):
        load_settings()
