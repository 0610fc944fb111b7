"""From S3, over its real protocol, to the folder that Triton reads: whole and verified, whatever happens on the way."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.core.errors import DeadlineExceeded, ModelLoadFailed, StoreUnavailable
from control_plane.models.adapters.managed_repository import ManagedRepository
from tests.aio import run
from tests.chaos_proxy import ChaosProxy, chaos_proxy
from tests.s3_server import BUCKET, SECRET, S3Server, s3_server
from tests.warm_fetcher import CHUNK_BYTES, fetch, tiers_over

URL = f"s3://{BUCKET}/cold"
CONFIG = b'backend: "onnxruntime"'
WEIGHTS = random.Random(7).randbytes(6 * CHUNK_BYTES)
MARK = WEIGHTS[5 * CHUNK_BYTES + 100 : 5 * CHUNK_BYTES + 108]
SUMS = f"{hashlib.sha256(WEIGHTS).hexdigest()}  1/model.onnx\n".encode()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        running.put("cold/listed/SHA256SUMS", SUMS)
        for model in ("listed", "plain"):
            running.put(f"cold/{model}/config.pbtxt", CONFIG)
            running.put(f"cold/{model}/1/model.onnx", WEIGHTS)
        yield running


@pytest.fixture
def proxy(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChaosProxy]:
    with chaos_proxy(server.port) as between:
        for name, value in server.environment(port=between.port).items():
            monkeypatch.setenv(name, value)
        yield between


class Counted:
    """Lets `most` bytes of answers through and then stalls; `passed` are those so far."""

    def __init__(self, proxy: ChaosProxy, most: int = 1 << 60) -> None:
        self._proxy = proxy
        self._most = most
        self.passed = 0
        proxy.answer = self

    def __call__(self, piece: bytes) -> bytes:
        self.passed += len(piece)
        if self.passed > self._most:
            self._proxy.is_stalled = True
        return piece


def partial_bytes(warm: Path) -> int:
    return sum(path.stat().st_size for path in warm.glob(".tidegate/partial/*/*/1/model.onnx"))


def await_partial(warm: Path, *, least: int) -> None:
    deadline_s = time.monotonic() + 20
    while partial_bytes(warm) < least:
        assert time.monotonic() < deadline_s, "nothing comes"
        time.sleep(0.02)


def test_a_model_of_a_store_is_placed_as_one_of_a_folder(proxy: ChaosProxy, tmp_path: Path) -> None:
    warm = tmp_path / "warm"
    run(fetch(URL, warm, "listed"))
    repository = ManagedRepository([warm], tmp_path / "state", config_name="")
    assert repository.names() == ["listed"]
    repository.place("listed")
    assert (repository.root / "listed/1/model.onnx").read_bytes() == WEIGHTS
    assert (repository.root / "listed/config.pbtxt").read_bytes() == CONFIG


def test_a_fetch_that_is_killed_is_gone_on_with_where_it_was(proxy: ChaosProxy, tmp_path: Path) -> None:
    warm = tmp_path / "warm"
    Counted(proxy, 4 * CHUNK_BYTES)
    killed = subprocess.Popen([sys.executable, "-m", "tests.warm_fetcher", URL, str(warm), "plain"], env={**os.environ})
    try:
        await_partial(warm, least=2 * CHUNK_BYTES)
    finally:
        killed.kill()
        killed.wait(timeout=10)
    there = partial_bytes(warm)
    assert not (warm / "plain").exists()
    proxy.is_stalled = False
    second = Counted(proxy)
    folder = run(fetch(URL, warm, "plain"))
    assert (folder / "1/model.onnx").read_bytes() == WEIGHTS
    assert second.passed < len(WEIGHTS) - there + CHUNK_BYTES  # what was there did not come again


def test_a_connection_that_breaks_is_gone_on_from(proxy: ChaosProxy, tmp_path: Path) -> None:
    counted = Counted(proxy)
    cuts = iter([2 * CHUNK_BYTES, 4 * CHUNK_BYTES])
    at = next(cuts)

    def cut(piece: bytes) -> bytes:
        nonlocal at
        counted(piece)
        if counted.passed > at:
            at = next(cuts, 1 << 60)
            proxy.cut(by_reset=True)
        return piece

    proxy.answer = cut
    folder = run(fetch(URL, tmp_path / "warm", "plain"))
    assert at == 1 << 60
    assert (folder / "1/model.onnx").read_bytes() == WEIGHTS
    assert counted.passed < len(WEIGHTS) + 3 * CHUNK_BYTES


@pytest.mark.parametrize("model", ["listed", "plain"], ids=["against its list", "against its etag"])
def test_a_byte_that_is_flipped_once_on_the_way_is_found_and_fetched_again(proxy: ChaosProxy, tmp_path: Path, model: str) -> None:
    flips = 0

    def flip(piece: bytes) -> bytes:
        nonlocal flips
        if flips or MARK not in piece:
            return piece
        flips += 1
        return piece.replace(MARK, MARK[::-1])

    proxy.answer = flip
    folder = run(fetch(URL, tmp_path / "warm", model))
    assert flips == 1
    assert (folder / "1/model.onnx").read_bytes() == WEIGHTS


def test_a_byte_that_is_always_flipped_is_found_and_nothing_is_put_in_place(proxy: ChaosProxy, tmp_path: Path) -> None:
    proxy.answer = lambda piece: piece.replace(MARK, MARK[::-1])
    with pytest.raises(ModelLoadFailed, match=r"1/model.onnx of model 'listed' has the SHA-256"):
        run(fetch(URL, tmp_path / "warm", "listed"))
    assert not (tmp_path / "warm/listed").exists()
    assert ManagedRepository([tmp_path / "warm"], tmp_path / "state", config_name="").names() == []


def test_a_byte_that_was_flipped_in_the_store_is_found(server: S3Server, proxy: ChaosProxy, tmp_path: Path) -> None:
    server.put("cold/rotten/SHA256SUMS", SUMS)
    server.put("cold/rotten/config.pbtxt", CONFIG)
    server.put("cold/rotten/1/model.onnx", WEIGHTS.replace(MARK, MARK[::-1]))
    with pytest.raises(ModelLoadFailed):
        run(fetch(URL, tmp_path / "warm", "rotten"))
    assert not (tmp_path / "warm/rotten").exists()


async def test_a_store_that_hangs_keeps_neither_the_caller_nor_the_end(proxy: ChaosProxy, tmp_path: Path) -> None:
    Counted(proxy, 3 * CHUNK_BYTES)
    now_s = asyncio.get_running_loop().time
    async with tiers_over(URL, tmp_path / "warm") as tiers:
        with pytest.raises(DeadlineExceeded, match="still being fetched"):
            await tiers.ensure_warm("plain", deadline_s=now_s() + 1.5)
        ends_s = now_s()
    assert now_s() - ends_s < 5


def test_no_message_and_no_log_has_the_secret(proxy: ChaosProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    proxy.is_refusing = True
    with pytest.raises(StoreUnavailable) as refused:
        run(fetch(URL, tmp_path / "warm", "plain"))
    assert URL in caplog.text
    assert SECRET not in f"{refused.value!r} {caplog.text}"
