"""Which variant is served: the decision, as a table of what is there and where it is to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.variants.latency_table import LatencyTable
from python_backends.runtime.variants.variant_choice import Candidate, Place, Variant, choose
from python_backends.runtime.variants.variant_mix import ONE_SHORT_TEXT, Mix

HERE = "x86_64 avx512_vnni"
AMX = "x86_64 amx_int8"
INACCURATE = "the cosine with fp32 at the worst percentile is 0.87500, below 0.99"


def table(short_ms: float, long_ms: float | None = None) -> LatencyTable:
    """Milliseconds of one row of 16 tokens, and of 64 rows of 256."""
    long_ms = 1000 * short_ms if long_ms is None else long_ms
    return LatencyTable((1, 64), (16, 256), ((short_ms, short_ms), (long_ms, long_ms)))


def candidate(name: str = "int8", ms: float | LatencyTable | None = 4.0, **changes: Any) -> Candidate:
    """A candidate that `auto` may choose on a CPU."""
    described = {"runtime": "onnxruntime", "device": "cpu", "machine": HERE, "objection": "", "there": True, **changes}
    directory = Path("/models/text_encoder/1", name)
    measured = table(ms) if isinstance(ms, float) else ms
    variant = Variant(name, directory, directory / "model.onnx", described["runtime"], described["device"], measured)
    return Candidate(variant, described["machine"], described["objection"], described["there"])


FP32, INT8 = candidate("fp32", 9.0), candidate("int8", 4.0)
PRUNED = candidate("pruned", 3.0, objection=INACCURATE)


def chosen(
    *candidates: Candidate,
    requested: str = "auto",
    device: str = "cpu",
    machine: str = HERE,
    installed: str = "onnxruntime torch tensorrt",
    mix: Mix = ONE_SHORT_TEXT,
) -> Variant:
    place = Place(device, "NVIDIA H200" if device == "gpu" else machine, installed.split().__contains__)
    return choose(candidates, requested, model="m", place=place, mix=mix)


# As a CPU with AMX measured them: PyTorch takes long for one short text and little for many long ones.
ON_AMX = [
    candidate("bf16", table(11.4, 310.0), runtime="torch", machine=AMX),
    candidate("fp32", table(4.9, 2400.0), machine=AMX),
    candidate("int8", table(2.3, 1100.0), machine=AMX),
    candidate("pruned", table(2.1, 950.0), machine=AMX, objection=INACCURATE),
]


@pytest.mark.parametrize(
    ("candidates", "given", "name"),
    [
        pytest.param([FP32, INT8], {}, "int8", id="the-fastest"),
        pytest.param([candidate("int8", 10.0), FP32], {}, "fp32", id="the-fastest-is-the-exact-one"),
        pytest.param([FP32, INT8, PRUNED], {}, "int8", id="not-one-that-is-not-accurate-enough"),
        pytest.param(ON_AMX, {"machine": AMX}, "int8", id="amx:-one-short-text-counts"),
        pytest.param(ON_AMX, {"machine": AMX, "mix": Mix.parse("64x256")}, "bf16", id="amx:-unless-pages-are-said-to"),
        pytest.param(ON_AMX, {"machine": AMX, "mix": Mix.parse("1x16:999 64x256:1")}, "int8", id="amx:-few-pages"),
        pytest.param(ON_AMX, {"machine": AMX, "mix": Mix.parse("1x16:9 64x256:1")}, "bf16", id="amx:-many-pages"),
        pytest.param(ON_AMX, {"machine": AMX, "installed": "onnxruntime", "mix": Mix.parse("64x256")}, "int8", id="amx:-without-pytorch"),
        pytest.param(ON_AMX, {}, "fp32", id="all-measured-on-another-kind-of-machine"),
        pytest.param([*ON_AMX[:2], INT8], {}, "int8", id="one-measured-on-this-kind"),
        pytest.param([INT8, candidate("fp32", 4.0)], {}, "fp32", id="a-tie-goes-to-the-exact-one"),
        pytest.param([candidate("int8", 3.0), candidate("bf16", 3.0), FP32], {}, "bf16", id="another-tie-goes-by-name"),
        pytest.param([candidate("fp32", None), INT8], {}, "int8", id="the-exact-one-not-measured-yet"),
        pytest.param([candidate("fp32", None), candidate("int8", None)], {}, "fp32", id="none-measured-yet"),
        pytest.param([FP32, candidate("int8", None)], {}, "fp32", id="the-fast-one-not-measured-yet"),
        pytest.param(
            [FP32, candidate("int8", LatencyTable((1,), (64,), ((4.0,),)))], {}, "int8", id="no-cell-so-short:-never-below-the-smallest"
        ),
        pytest.param(
            [FP32, candidate("int8", LatencyTable((1, 8), (8, 32), ((8.0, 40.0), (9.0, 50.0))))], {}, "fp32", id="between-two-cells"
        ),
        pytest.param([FP32], {"requested": "fp32"}, "fp32", id="named"),
        pytest.param(
            [FP32, candidate("int8", None, machine="x86_64 avx2", objection=INACCURATE)],
            {"requested": "int8"},
            "int8",
            id="named,-whatever-was-measured",
        ),
        pytest.param([FP32, INT8], {"device": "gpu"}, "fp32", id="gpu:-its-own-count,-and-there-are-none"),
        pytest.param(
            [FP32, INT8, candidate("compiled", 5.0, runtime="torch", device="gpu", machine="NVIDIA H200")],
            {"device": "gpu"},
            "compiled",
            id="gpu:-its-own",
        ),
        pytest.param([FP32], {"requested": "fp32", "device": "gpu"}, "fp32", id="gpu:-onnx-runtime-runs-a-named-one"),
    ],
)
def test_which_is_served(candidates: list[Candidate], given: dict[str, Any], name: str) -> None:
    assert chosen(*candidates, **given).name == name


@pytest.mark.parametrize("machine", [HERE, AMX])
def test_by_default_none_that_may_be_chosen_is_faster_for_one_short_text(machine: str) -> None:
    for candidates in (ON_AMX, [FP32, INT8, PRUNED]):
        served = chosen(*candidates, machine=machine)
        others = [one.variant for one in candidates if one.machine_kind == machine and not one.objection]
        assert not others or all(
            served.latency_table.cost_ms(1, 16) <= other.latency_table.cost_ms(1, 16)
            for other in others
            if served.latency_table and other.latency_table
        )


@pytest.mark.parametrize(
    ("changes", "objection"),
    [
        pytest.param({"device": "gpu", "machine": "NVIDIA H200"}, "for a gpu", id="device"),
        pytest.param({"machine": "x86_64 avx2"}, f"measured on x86_64 avx2, this is {HERE}", id="machine"),
        pytest.param({"machine": ""}, f"measured on an unknown machine, this is {HERE}", id="no-machine"),
        pytest.param({"runtime": "tensorrt"}, "tensorrt is not installed", id="runtime"),
        pytest.param({"ms": None}, "not measured here yet", id="no-table"),
        pytest.param({"there": False}, "model.onnx is missing", id="no-file"),
        pytest.param({"objection": INACCURATE}, INACCURATE, id="accuracy"),
        pytest.param({"objection": "its latency table is not whole", "ms": None}, "its latency table is not whole", id="half-a-table"),
    ],
)
def test_a_fast_one_that_cannot_be_trusted_is_not_chosen_and_the_reason_is_told(changes: dict[str, Any], objection: str) -> None:
    assert chosen(FP32, candidate("int8", **{"ms": 4.0, **changes}), installed="onnxruntime").reason == (
        f"fp32 (9.0 ms for 1x16 tokens), not int8 ({objection})"
    )


@pytest.mark.parametrize(
    ("candidates", "given", "reason"),
    [
        pytest.param(
            ON_AMX,
            {"machine": AMX},
            f"int8 (2.3 ms for 1x16 tokens), not fp32 (4.9 ms), bf16 (11.4 ms), pruned ({INACCURATE})",
            id="the-fastest-first,-then-what-must-not-be",
        ),
        pytest.param(
            [FP32, INT8],
            {"mix": Mix.parse(" 1x16:3  64x256 ")},
            "int8 (1003.0 ms for 1x16:3 64x256 tokens), not fp32 (2256.8 ms)",
            id="a-mix",
        ),
        pytest.param([FP32], {}, "fp32 (9.0 ms for 1x16 tokens)", id="alone"),
        pytest.param([candidate("fp32", None)], {}, "fp32 (the fallback, not measured here yet)", id="fallback"),
        pytest.param([FP32, INT8], {"requested": "int8"}, "int8, as configured", id="named"),
    ],
)
def test_the_reason_is_one_line_about_every_variant(candidates: list[Candidate], given: dict[str, Any], reason: str) -> None:
    assert chosen(*candidates, **given).reason == reason


def test_without_a_fallback_the_error_says_what_is_wrong_with_the_others() -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(candidate("int8", objection=INACCURATE))

    assert str(caught.value) == (
        f"model 'm': variant 'fp32' is not built, there are: int8 ({INACCURATE}); run `tidegate models build m --variant fp32`"
    )


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        pytest.param(
            "int4",
            r"model 'm': variant 'int4' is not built, there are: fp32, plan; run `tidegate models build m --variant int4`$",
            id="not-built",
        ),
        pytest.param("plan", "variant 'plan' runs on a GPU: set `kind: KIND_GPU` in instance_group or choose another variant", id="device"),
        pytest.param("fp32", "variant 'fp32' needs the runtime onnxruntime, which is not installed here", id="runtime"),
    ],
)
def test_a_named_variant_that_cannot_run_is_refused(requested: str, message: str) -> None:
    plan = candidate("plan", runtime="tensorrt", device="gpu", machine="NVIDIA H200")

    with pytest.raises(ConfigError, match=message):
        chosen(FP32, plan, requested=requested, installed="tensorrt")


@pytest.mark.parametrize(
    ("text", "batches"),
    [
        pytest.param("1x16", {(1, 16): 1.0}, id="one"),
        pytest.param("1x16:0.9 32x128:.1".replace(":.", ":0."), {(1, 16): 0.9, (32, 128): 0.1}, id="two"),
        pytest.param("  8x64:2\t8x64 1x1:0 ", {(8, 64): 3.0, (1, 1): 0.0}, id="one-twice,-one-without-weight"),
    ],
)
def test_a_mix_is_read(text: str, batches: dict[tuple[int, int], float]) -> None:
    assert Mix.parse(text).batches == batches


@pytest.mark.parametrize(
    "text", ["", " ", "1x16:0", "16", "0x16", "1x0", "1x16:", "1x16:-1", "1x16:nan", "1x16,8x64", "1e3x16", "x", "1x16:1e9"]
)
def test_a_mix_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"parameter 'variant_mix'.*such as 1x16"):
        Mix.parse(text)
