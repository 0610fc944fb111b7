from __future__ import annotations

import asyncio
import hashlib
import random
import resource
from pathlib import Path

import pytest

from control_plane.core.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    GatewayStopping,
    ModelLoadFailed,
    Overloaded,
    StartupError,
    StoreUnavailable,
    UpstreamUnavailable,
)
from tests.fakes.triton.model_store import FakeModelStore
from tests.unit.models.tiers.tiers_bench import Bench, bench, model, until


async def test_a_break_is_gone_on_from_and_one_that_lasts_is_told(tmp_path: Path) -> None:
    store = FakeModelStore({"m": model()})
    breaks = iter([True, True, False])

    def look(path: str, span: range) -> None:
        if next(breaks, False):
            raise StoreUnavailable("reset")

    store.on_read = look
    async with bench(tmp_path, store) as lab:
        await lab.warm("m")
        assert len(store.reads) == 3


async def test_damage_that_a_list_shows_is_never_put_in_place(tmp_path: Path) -> None:
    content = b"w" * 100
    sums = f"{hashlib.sha256(content).hexdigest()}  1/model.onnx\n".encode()
    store = FakeModelStore({"m": {"SHA256SUMS": sums, "1/model.onnx": content[:-1] + b"x"}})
    async with bench(tmp_path, store) as lab:
        with pytest.raises(ModelLoadFailed, match=r"not [0-9a-f]{64} as its source's list says"):
            await lab.warm("m")
        assert lab.held() == []
        store.models["m"]["1/model.onnx"] = content
        await lab.warm("m")


@pytest.mark.parametrize(
    "sums", [b"no digest at all", b"0" * 64 + b"  1/missing\n", b"\xff\xfe"], ids=["unreadable", "incomplete", "no text"]
)
async def test_a_list_that_says_nothing_or_too_much_is_an_error(tmp_path: Path, sums: bytes) -> None:
    async with bench(tmp_path, FakeModelStore({"m": {"SHA256SUMS": sums, "1/model.onnx": b"w"}})) as lab:
        with pytest.raises(ModelLoadFailed, match=r"cannot be read|is not complete: '1/missing' is listed and not there"):
            await lab.warm("m")
        assert lab.held() == []


async def test_a_source_that_changes_once_is_fetched_anew_and_one_that_always_does_is_given_up(tmp_path: Path) -> None:
    store = FakeModelStore({"m": model()})
    count = 0

    def rewrite(path: str, span: range) -> None:
        nonlocal count
        count += 1
        if count == 1 or count > 10:
            store.models["m"] = {"config.pbtxt": b"", "1/model.onnx": b"%03d" % count + b"n" * 97}

    store.on_read = rewrite
    async with bench(tmp_path, store) as lab:
        folder = await lab.warm("m")
        assert (folder / "1/model.onnx").read_bytes() == b"001" + b"n" * 97
    count = 10
    async with bench(tmp_path / "other", store) as lab:
        with pytest.raises(ModelLoadFailed, match="has changed while it was fetched"):
            await lab.warm("m")
        assert (count, lab.held()) == (14, [])


async def test_without_its_owner_and_while_it_ends_nothing_is_fetched(tmp_path: Path) -> None:
    store = FakeModelStore({"m": model()})
    made = Bench(tmp_path, [store], 1000)
    await made.tiers.open()
    with pytest.raises(UpstreamUnavailable, match="while the gateway starts or stops"):
        await made.warm("m")
    owner = asyncio.get_running_loop().create_task(made.tiers.run())
    await asyncio.sleep(0)
    store.may_read.clear()
    waiter = asyncio.get_running_loop().create_task(made.warm("m"))
    await until(lambda: bool(store.reads))
    owner.cancel()
    with pytest.raises(GatewayStopping, match="the gateway is stopping"):
        await waiter
    await asyncio.wait([owner])
    await made.tiers.close()


async def test_a_folder_has_one_process(tmp_path: Path) -> None:
    async with bench(tmp_path, FakeModelStore({})):
        second = Bench(tmp_path, [FakeModelStore({})], 1000)
        with pytest.raises(StartupError, match=r"--warm-dir .* is in use by tidegate with pid \d+; stop it or choose another"):
            await second.tiers.open()
        await second.tiers.close()


async def test_bandwidth_is_learned_from_what_fetches_take(tmp_path: Path) -> None:
    store = FakeModelStore({name: model(4 << 20) for name in "ab"})
    async with bench(tmp_path, store, max_bytes=1 << 30) as lab:
        before_s = lab.tiers.expected_fetch_s("b")
        await lab.warm("a")
        assert 0 < lab.tiers.expected_fetch_s("b") != before_s


async def test_a_full_disk_is_told_and_nothing_half_made_stays(tmp_path: Path) -> None:
    async with bench(tmp_path, FakeModelStore({"m": model(500), "small": model(10)})) as lab:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400, hard))
        try:
            with pytest.raises(StoreUnavailable, match=r"--warm-dir .* cannot be written: File too large"):
                await lab.warm("m")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (lab.held(), lab.partials()) == ([], [])
        await lab.warm("small")
        await lab.warm("m")


def size_if_there(file: Path) -> int:
    """Return the size of a file, and 0 where a thread has removed it meanwhile."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_wanted_pinned_and_left_a_pinned_copy_is_whole_and_the_bytes_are_kept(tmp_path: Path, seed: int) -> None:
    """Random callers over twice as many models as fit into the tier; some callers give up while they wait."""
    chance = random.Random(seed)
    store = FakeModelStore({name: model(250, name.encode()) for name in "abcdefgh"})
    served = 0

    async def call(lab: Bench) -> None:
        nonlocal served
        for _ in range(12):
            name = chance.choice("aaabcdefgh")
            try:
                path = await lab.warm(name, timeout_s=chance.choice([0.002, 5.0]))
            except (Overloaded, DeadlineExceeded):
                continue
            with lab.tiers.pinned(name):
                for _ in range(3):
                    assert (path / "1/model.onnx").read_bytes() == name.encode() * 250
                    await asyncio.sleep(chance.random() / 200)
                assert sum(map(size_if_there, lab.folder.glob("*/1/model.onnx"))) <= 1000
            served += 1

    async with bench(tmp_path, store) as lab:
        await asyncio.gather(*(call(lab) for _ in range(6)))
        assert served > 10
        await asyncio.gather(*lab.tiers._under_way.values())
        assert not lab.tiers._pins
        assert not lab.tiers._wanted
        assert not lab.tiers._reserved
    async with bench(tmp_path, store) as lab:  # what is on the disk is what was known
        assert sorted(lab.tiers._copies) == lab.held()


async def test_an_error_of_another_kind_is_told_and_ends_nothing_else(tmp_path: Path) -> None:
    store = FakeModelStore({"m": model(), "n": model()})

    def fail(path: str, span: range) -> None:
        raise RuntimeError("a defect")

    async with bench(tmp_path, store) as lab:
        store.on_read = fail
        with pytest.raises(ModelLoadFailed, match="'m' could not be fetched: RuntimeError") as told:
            await lab.warm("m")
        assert isinstance(told.value, ControlPlaneError)
        store.on_read = lambda path, span: None
        await lab.warm("n")
