"""Each format is read as it is published, and what the project generates is the same each time."""

from __future__ import annotations

import gzip
import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import zstandard

from perf.eviction import traces as eviction_traces
from perf.eviction.generators import documents, generated, recency
from perf.eviction.traces import Trace, from_file

_GENTD26 = (
    "gmt_create,predict_type,prompt_length,negative_prompt_length,num_images_per_prompt,num_inference_steps,checkpoint_model_version_id"
)


def gzipped(path: Path, *lines: str) -> Path:
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))
    return path


def read(path: Path) -> Trace:
    trace = from_file(path)
    assert trace is not None
    return trace


def test_cache2k(tmp_path: Path) -> None:
    path = tmp_path / "cache_web.trace.xz"
    path.write_bytes(lzma.compress(np.array([7, 2**31, 7], dtype=">u4").tobytes()))
    assert (read(path).name, read(path).keys) == ("cache_web", [0, 1, 0])


def test_arc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "oltp.lis.zst"
    path.write_bytes(zstandard.compress(b"10 3 0 0\n11 1 0 1\n10 2 0 2\n"))
    assert read(path).keys == [0, 1, 2, 1, 0, 1]
    monkeypatch.setattr(eviction_traces, "MOST_REQUESTS", 2)
    assert read(path).keys == [0, 1]


def test_bing(tmp_path: Path) -> None:
    rows = ["2020-01-01\tnever\t1", "2020-01-01\toften\t99", "2020-01-02\tlater\t5"]
    trace = read(gzipped(tmp_path / "bing.tsv.gz", "Date\tQuery\tPopularityScore", *rows))
    counts = Counter(trace.keys)
    assert counts[0] > 50 * counts[1] > 0
    assert counts[2] == pytest.approx(len(trace.keys) / 3, abs=1)
    assert trace.keys[-1] == 2
    assert trace == read(tmp_path / "bing.tsv.gz")


def test_gentd26(tmp_path: Path) -> None:
    rows = ["1,TXT,10,5,1,30,M0", "2,TXT,10,5,1,30,M1", "3,TXT,10,5,1,30,M0"]
    assert read(gzipped(tmp_path / "requests.csv.gz", _GENTD26, *rows)).keys == [0, 1, 0]


@pytest.mark.parametrize(("name", "head"), [("loads.csv.gz", "model,load_ms"), ("queries.tsv.gz", "id\ttext"), ("notes.txt.gz", "a")])
def test_other_files_are_passed_over(tmp_path: Path, name: str, head: str) -> None:
    assert from_file(gzipped(tmp_path / name, head, "1\t2")) is None


def test_generated_are_the_same_each_time() -> None:
    traces = generated(6000)
    assert traces == generated(6000)
    assert [trace.name for trace in traces] == ["zipf", "drift", "scans", "loop", "recency", "phases", "documents"]
    for trace in traces:
        assert len(trace.keys) == 6000
        assert set(trace.keys) == set(range(trace.distinct))


def test_recency_is_in_the_distance() -> None:
    """Half of the requests are for a key that at most exp(6) others followed, the new ones aside."""
    keys, last, near, again = recency(1, 20_000).tolist(), {}, 0, 0
    for at, key in enumerate(keys):
        if key in last:
            again += 1
            near += at - last[key] <= 400
        last[key] = at
    assert again > 0.75 * len(keys)
    assert 0.4 < near / again < 0.7


def test_documents_cost_by_their_length() -> None:
    trace = documents(1, 20_000)
    costs = Counter(trace.cost_ms(key) > 7 for key in set(trace.keys))
    assert costs[True] / trace.distinct == pytest.approx(0.05, abs=0.01)
    assert trace.cost_ms_of_all() == sum(trace.cost_ms(key) for key in trace.keys)
    once = sum(count == 1 for count in Counter(trace.keys).values())
    assert once > 0.3 * 20_000 * 0.95
