"""Counts are read from Triton's pages."""

from __future__ import annotations

from perf.servers.triton_statistics import read_metrics, read_variants

PAGE = """# HELP tidegate_batching_rows_total Rows
# TYPE tidegate_batching_rows_total counter
tidegate_batching_rows_total{model="encoder",version="1"} 12
tidegate_batching_rows_total{model="encoder",version="2"} 1.5e+01
tidegate_batching_rows_total{model="other",version="1",variant="fp32"} 99
tidegate_batching_requests_total{model="chosen",version="1",variant="int8"} 9
tidegate_batching_rows_total{model="chosen",version="1",variant="int8"} 9
tidegate_batching_rows_total{model="chosen",version="1",variant="bf16"} 0
tidegate_batching_batches_total{model="encoder",version="1"} 3
nv_inference_count{model="encoder",version="1"} 7
"""


def test_metrics_of_one_model_over_its_other_labels() -> None:
    assert read_metrics(PAGE, "encoder") == {"tidegate_batching_rows_total": 27.0, "tidegate_batching_batches_total": 3.0}
    assert read_metrics(PAGE, "none") == {}


def test_a_variant_that_computed_nothing_was_not_served() -> None:
    assert read_variants(PAGE, "chosen") == ["int8"]
    assert read_variants(PAGE, "encoder") == []
