from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from control_plane.core.algorithms.steps import finish
from control_plane.frontends.merged_metrics import merged_metrics_steps

ONE = b"""# HELP nv_count Requests {of} all
# TYPE nv_count counter
nv_count{model="a b",version="1"} 3
nv_count{model="c"} 4
# HELP nv_power Watts
# TYPE nv_power gauge
nv_power 12.5
nv_energy{} 7
"""
TWO = b"""# HELP nv_count Requests {of} all
# TYPE nv_count counter
nv_count{model="a b",version="1"} 5
"""


def merged_metrics(pages: Mapping[str, bytes]) -> bytes:
    return finish(merged_metrics_steps(pages))


def samples(page: bytes) -> set[tuple[str, tuple[tuple[str, str], ...], float]]:
    families = text_string_to_metric_families(page.decode())
    return {(sample.name, tuple(sorted(sample.labels.items())), sample.value) for family in families for sample in family.samples}


def test_one_that_is_there_alone_says_whose_it_is_too() -> None:
    assert samples(merged_metrics({"y": TWO})) == {("nv_count_total", (("model", "a b"), ("server", "y"), ("version", "1")), 5.0)}


def test_of_several_each_sample_says_whose_it_is() -> None:
    page = merged_metrics({"x": ONE, "y": TWO})
    assert samples(page) == {
        ("nv_count_total", (("model", "a b"), ("server", "x"), ("version", "1")), 3.0),
        ("nv_count_total", (("model", "c"), ("server", "x")), 4.0),
        ("nv_count_total", (("model", "a b"), ("server", "y"), ("version", "1")), 5.0),
        ("nv_power", (("server", "x"),), 12.5),
        ("nv_energy", (("server", "x"),), 7.0),
    }


def test_all_lines_of_a_metric_stand_together_and_are_told_about_once() -> None:
    lines = merged_metrics({"x": ONE, "y": TWO}).decode().splitlines()
    assert [number for number, line in enumerate(lines) if line.startswith("nv_count{")] == [2, 3, 4]
    assert sum(line.startswith("# HELP nv_count") for line in lines) == 1


def test_servers_that_tell_nothing_are_not_there() -> None:
    assert merged_metrics({"x": b"", "y": b""}) == b""
    assert merged_metrics({}) == b""
    assert samples(merged_metrics({"x": b"", "y": TWO})) == {("nv_count_total", (("model", "a b"), ("server", "y"), ("version", "1")), 5.0)}


def test_others_have_a_turn_after_each_thousand_lines() -> None:
    page = b"".join(b"nv_%d 1\n" % number for number in range(2500))
    assert len(list(merged_metrics_steps({"x": page, "y": page}))) == 4
