from __future__ import annotations

import asyncio
import hashlib
import os
import random
import resource
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from control_plane.adapters.warm_tier.tier import DiskWarmTier
from control_plane.domain.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    ModelLoadFailed,
    ModelNotFound,
    Overloaded,
    StartupError,
    StoreUnavailable,
    UpstreamUnavailable,
)
from control_plane.domain.fleet import Tier
from control_plane.services.model_tiers import ModelTiers
from tests.aio import run
from tests.fakes.model_store import FakeModelStore, Moves


def model(size: int = 100, fill: bytes = b"w") -> dict[str, bytes]:
    return {"config.pbtxt": b"", "1/model.onnx": fill * size}


def needs(folder: Path) -> Sequence[str]:
    """A configuration here is the names of the steps."""
    config = folder / "config.pbtxt"
    return config.read_text().split() if config.exists() else ()


class Bench:
    def __init__(self, folder: Path, stores: Sequence[FakeModelStore], max_bytes: int, **options: object) -> None:
        self.moves = Moves()
        self.folder = folder / "warm"
        tier = DiskWarmTier(self.folder, max_bytes=max_bytes)
        self.tiers = ModelTiers(stores=stores, warm=tier, steps_of=needs, observer=self.moves, **options)  # type: ignore[arg-type]

    async def warm(self, name: str, *, timeout_s: float = 10.0) -> Path:
        return await self.tiers.ensure_warm(name, deadline_s=asyncio.get_running_loop().time() + timeout_s)

    def held(self) -> list[str]:
        return sorted(entry.name for entry in self.folder.iterdir() if not entry.name.startswith("."))

    def partials(self) -> list[Path]:
        return [path for path in (self.folder / ".tidegate/partial").rglob("*") if path.is_file()]


@asynccontextmanager
async def bench(folder: Path, *stores: FakeModelStore, max_bytes: int = 1000, **options: object) -> AsyncIterator[Bench]:
    made = Bench(folder, stores, max_bytes, **options)
    owner = None
    try:
        await made.tiers.open()
        owner = asyncio.get_running_loop().create_task(made.tiers.run())
        await asyncio.sleep(0)
        yield made
    finally:
        if owner is not None:
            owner.cancel()
            await asyncio.wait([owner])
        await made.tiers.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_cold_model_becomes_warm_as_it_is_in_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        store = FakeModelStore({"m": model()})
        async with bench(tmp_path, store) as lab:
            assert lab.tiers.names() == ["m"]
            assert lab.tiers.tier_of("m") is Tier.COLD
            assert lab.tiers.expected_fetch_s("m") > 0
            folder = await lab.warm("m")
            assert (folder, (folder / "1/model.onnx").read_bytes()) == (lab.folder / "m", b"w" * 100)
            assert lab.tiers.tier_of("m") is Tier.WARM
            assert lab.tiers.expected_fetch_s("m") == 0
            assert lab.moves.seen == [("m", "cold to warm", 100)]
        assert store.is_closed

    run(main())


def test_what_no_store_has_is_another_sources_and_is_here(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, FakeModelStore({})) as lab:
            assert lab.tiers.tier_of("elsewhere") is Tier.WARM
            assert lab.tiers.expected_fetch_s("elsewhere") == 0

    run(main())


def test_all_who_want_a_model_at_the_same_time_wait_for_one_fetch(tmp_path: Path) -> None:
    async def main() -> None:
        store = FakeModelStore({"m": model()})
        async with bench(tmp_path, store) as lab:
            folders = await asyncio.gather(*(lab.warm("m") for _ in range(50)))
            assert set(folders) == {lab.folder / "m"}
            assert [path for _, path, _ in store.reads] == ["1/model.onnx"]  # the other one is empty

    run(main())


def test_a_fetch_goes_on_when_all_who_waited_have_left(tmp_path: Path) -> None:
    async def main() -> None:
        store = FakeModelStore({"m": model()})
        async with bench(tmp_path, store) as lab:
            store.may_read.clear()
            waiter = asyncio.get_running_loop().create_task(lab.warm("m"))
            await until(lambda: bool(store.reads))
            waiter.cancel()
            await asyncio.wait([waiter])
            with pytest.raises(DeadlineExceeded, match=r"'m' is still being fetched; try again in \d+ s"):
                await lab.warm("m", timeout_s=0.05)
            store.may_read.set()
            await lab.warm("m")
            assert len(store.reads) == 1

    run(main())


def test_a_warm_model_needs_no_store(tmp_path: Path) -> None:
    async def main() -> None:
        store = FakeModelStore({"m": model()})
        async with bench(tmp_path, store) as lab:
            await lab.warm("m")
            store.is_away = True
            await lab.tiers.refresh()
            assert lab.tiers.names() == ["m"]
            await lab.warm("m")

    run(main())


def test_a_restart_takes_over_what_is_there_and_fetches_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        store = FakeModelStore({"m": model(), "other": model()})
        async with bench(tmp_path, store) as lab:
            await lab.warm("m")
        store.is_away = True
        async with bench(tmp_path, store) as lab:
            assert (lab.tiers.tier_of("m"), lab.tiers.names()) == (Tier.WARM, ["m"])
            await lab.warm("m")
            with pytest.raises(StoreUnavailable):
                await lab.warm("other")
        assert len(store.reads) == 1

    run(main())


@pytest.mark.parametrize("is_by_time", [True, False], ids=["seen by its time", "seen by its digest"])
def test_a_copy_that_was_changed_while_nobody_ran_is_fetched_again(tmp_path: Path, is_by_time: bool) -> None:
    async def main() -> None:
        store = FakeModelStore({"m": model()})
        async with bench(tmp_path, store) as lab:
            path = await lab.warm("m") / "1/model.onnx"
        times = path.stat()
        path.write_bytes(b"w" * 99 + b"W")
        if not is_by_time:
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        async with bench(tmp_path, store) as lab:
            assert ("m" in lab.held()) is not is_by_time
            await lab.warm("m")
            assert path.read_bytes() == b"w" * 100

    run(main())


def test_a_file_that_vanishes_while_it_runs_is_fetched_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, FakeModelStore({"m": model()})) as lab:
            (await lab.warm("m") / "1/model.onnx").unlink()
            assert (await lab.warm("m") / "1/model.onnx").exists()
            assert lab.moves.seen == [("m", "cold to warm", 100), ("m", "warm to cold", 100), ("m", "cold to warm", 100)]

    run(main())


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, FakeModelStore({name: model(300) for name in "abcd"})) as lab:
            for name in "abcad":
                await lab.warm(name)
            assert lab.held() == ["a", "c", "d"]
            assert ("b", "warm to cold", 300) in lab.moves.seen
        async with bench(tmp_path, FakeModelStore({name: model(300) for name in "abcd"})) as lab:
            await lab.warm("b")  # the order of use has survived
            assert lab.held() == ["a", "b", "d"]

    run(main())


def test_worth_decides_where_it_is_given(tmp_path: Path) -> None:
    async def main() -> None:
        worth = {"a": 1.0, "b": 3.0, "c": 2.0}
        async with bench(tmp_path, FakeModelStore({name: model(300) for name in "abcd"}), worth=worth.__getitem__) as lab:
            for name in "cbad":
                await lab.warm(name)
            assert lab.held() == ["b", "c", "d"]

    run(main())


def test_what_is_pinned_stays_and_room_that_it_takes_is_refused_without_evicting_in_vain(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, FakeModelStore({"a": model(400), "b": model(400), "big": model(900)})) as lab:
            await lab.warm("a")
            with lab.tiers.pinned("a"), lab.tiers.pinned("a"):
                await lab.warm("b")
                with pytest.raises(Overloaded, match="no room in the warm tier for model 'big': 300 bytes too many"):
                    await lab.warm("big")
                assert lab.held() == ["a", "b"]
            await lab.warm("big")
            assert lab.held() == ["big"]

    run(main())


def test_what_could_never_fit_says_what_to_raise(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, FakeModelStore({"a": model(400), "huge": model(1001)})) as lab:
            await lab.warm("a")
            with pytest.raises(ModelLoadFailed, match="'huge' has 1001 bytes and the warm tier 1000: raise --warm-bytes"):
                await lab.warm("huge")
            assert (lab.held(), lab.partials()) == (["a"], [])

    run(main())


def test_fetches_at_the_same_time_keep_within_the_bytes_together(tmp_path: Path) -> None:
    async def main() -> None:
        store = FakeModelStore({name: model(300) for name in "abcdefgh"})
        most = 0

        def look(path: str, span: range) -> None:
            nonlocal most
            folder = tmp_path / "warm"
            copies = (path.stat().st_size for path in folder.rglob("model.onnx") if "trash" not in path.parts)
            most = max(most, sum(copies))

        store.on_read = look
        async with bench(tmp_path, store) as lab:
            results = await asyncio.gather(*(lab.warm(name) for name in "abcdefgh"), return_exceptions=True)
            assert all(result is None or isinstance(result, Path | Overloaded) for result in results)
            assert len(lab.held()) <= 3
            assert most <= 1000

    run(main())


def test_an_ensemble_is_warm_once_all_that_it_needs_is_and_a_pin_holds_them_too(tmp_path: Path) -> None:
    async def main() -> None:
        models = {
            "chain": {"config.pbtxt": b"inner step elsewhere"},
            "inner": {"config.pbtxt": b"step chain"},  # a cycle, which Triton refuses with a message of its own
            "step": model(300),
            "big": model(800),
        }
        async with bench(tmp_path, FakeModelStore(models)) as lab:
            await lab.warm("chain")
            assert lab.held() == ["chain", "inner", "step"]
            with lab.tiers.pinned("chain"), pytest.raises(Overloaded):
                await lab.warm("big")
            await lab.warm("big")

    run(main())


def test_a_changed_model_is_taken_up_unless_it_is_pinned(tmp_path: Path) -> None:
    async def main() -> None:
        store = FakeModelStore({"m": model(600)})
        async with bench(tmp_path, store) as lab:
            path = await lab.warm("m") / "1/model.onnx"
            store.models["m"] = model(500, b"n")
            await lab.tiers.refresh()
            with lab.tiers.pinned("m"):
                await lab.warm("m")
                assert path.read_bytes() == b"w" * 600
            await lab.warm("m")
            assert path.read_bytes() == b"n" * 500
            assert lab.partials() == []

    run(main())


def test_an_older_copy_is_served_while_the_new_one_cannot_be_had(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = FakeModelStore({"m": model(600), "pinned": model(300)})
        async with bench(tmp_path, store) as lab:
            path = await lab.warm("m") / "1/model.onnx"
            await lab.warm("pinned")
            with lab.tiers.pinned("pinned"):
                store.models["m"] = model(1001, b"n")
                await lab.tiers.refresh()
                await lab.warm("m")
                assert path.read_bytes() == b"w" * 600

    run(main())
    assert "has changed and cannot be fetched; what is warm is served: model 'm' has 1001 bytes" in caplog.text


def test_what_an_earlier_life_left_is_expected_to_take_its_verification(tmp_path: Path) -> None:
    async def main() -> None:
        store = FakeModelStore({"m": model(600)})
        async with bench(tmp_path, store) as lab:
            await lab.warm("m")
        async with bench(tmp_path, store) as lab:
            assert lab.tiers.expected_fetch_s("m") == 600 / 500e6
            await lab.warm("m")
            assert lab.tiers.expected_fetch_s("m") == 0

    run(main())


def test_a_model_that_has_just_come_is_found_before_the_next_listing(tmp_path: Path) -> None:
    async def main() -> None:
        store = FakeModelStore({})
        async with bench(tmp_path, store) as lab:
            store.models["new"] = model()
            await lab.warm("new")
            assert store.listings == 1

    run(main())


@pytest.mark.parametrize("name", ["nobody", "../m", "m\u00f6del", ".tidegate", "", "a" * 300])
def test_what_no_store_has_is_not_found(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with bench(tmp_path, FakeModelStore({"m": model()})) as lab:
            with pytest.raises(ModelNotFound, match=r"no model 'nobody' in fake://cold|cannot be a model's name"):
                await lab.warm(name)

    run(main())


def test_a_name_belongs_to_the_first_store_and_before_it_to_a_plain_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        first, second = FakeModelStore({"m": model(1)}, "fake://1"), FakeModelStore({"m": model(2), "local": model()}, "fake://2")
        async with bench(tmp_path, first, second, taken=lambda: ["local"]) as lab:
            assert lab.tiers.names() == ["m"]
            assert len((await lab.warm("m") / "1/model.onnx").read_bytes()) == 1
            with pytest.raises(ModelNotFound):
                await lab.warm("local")
        async with bench(tmp_path, first, second, taken=lambda: ["m"]) as lab:
            assert lab.held() == []  # or two sources of the managed repository would have the name

    run(main())
    assert "model m in fake://2 has the name of one in fake://1, which is the one that is served" in caplog.messages
    assert "model local in fake://2 has the name of one in a model repository, which is the one that is served" in caplog.messages


def test_a_break_is_gone_on_from_and_one_that_lasts_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        store = FakeModelStore({"m": model()})
        breaks = iter([True, True, False])

        def look(path: str, span: range) -> None:
            if next(breaks, False):
                raise StoreUnavailable("reset")

        store.on_read = look
        async with bench(tmp_path, store) as lab:
            await lab.warm("m")
            assert len(store.reads) == 3

    run(main())


def test_damage_that_a_list_shows_is_never_put_in_place(tmp_path: Path) -> None:
    async def main() -> None:
        content = b"w" * 100
        sums = f"{hashlib.sha256(content).hexdigest()}  1/model.onnx\n".encode()
        store = FakeModelStore({"m": {"SHA256SUMS": sums, "1/model.onnx": content[:-1] + b"x"}})
        async with bench(tmp_path, store) as lab:
            with pytest.raises(ModelLoadFailed, match=r"not [0-9a-f]{64} as its source's list says"):
                await lab.warm("m")
            assert lab.held() == []
            store.models["m"]["1/model.onnx"] = content
            await lab.warm("m")

    run(main())


@pytest.mark.parametrize(
    "sums", [b"no digest at all", b"0" * 64 + b"  1/missing\n", b"\xff\xfe"], ids=["unreadable", "incomplete", "no text"]
)
def test_a_list_that_says_nothing_or_too_much_is_an_error(tmp_path: Path, sums: bytes) -> None:
    async def main() -> None:
        async with bench(tmp_path, FakeModelStore({"m": {"SHA256SUMS": sums, "1/model.onnx": b"w"}})) as lab:
            with pytest.raises(ModelLoadFailed, match=r"cannot be read|is not complete: '1/missing' is listed and not there"):
                await lab.warm("m")
            assert lab.held() == []

    run(main())


def test_a_source_that_changes_once_is_fetched_anew_and_one_that_always_does_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())


def test_without_its_owner_and_while_it_ends_nothing_is_fetched(tmp_path: Path) -> None:
    async def main() -> None:
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
        with pytest.raises(UpstreamUnavailable, match="the gateway is stopping"):
            await waiter
        await asyncio.wait([owner])
        await made.tiers.close()

    run(main())


def test_a_folder_has_one_process(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, FakeModelStore({})):
            second = Bench(tmp_path, [FakeModelStore({})], 1000)
            with pytest.raises(StartupError, match=r"--warm-dir .* is in use by tidegate with pid \d+; stop it or choose another"):
                await second.tiers.open()
            await second.tiers.close()

    run(main())


def test_bandwidth_is_learned_from_what_fetches_take(tmp_path: Path) -> None:
    async def main() -> None:
        store = FakeModelStore({name: model(4 << 20) for name in "ab"})
        async with bench(tmp_path, store, max_bytes=1 << 30) as lab:
            before_s = lab.tiers.expected_fetch_s("b")
            await lab.warm("a")
            assert 0 < lab.tiers.expected_fetch_s("b") != before_s

    run(main())


def test_a_full_disk_is_told_and_nothing_half_made_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, FakeModelStore({"m": model(500), "small": model(10)})) as lab:
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (400, hard))
            try:
                with pytest.raises(Overloaded, match=r"--warm-dir .* cannot be written: File too large"):
                    await lab.warm("m")
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert (lab.held(), lab.partials()) == ([], [])
            await lab.warm("small")
            await lab.warm("m")

    run(main())


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_wanted_pinned_and_left_a_pinned_copy_is_whole_and_the_bytes_are_kept(tmp_path: Path, seed: int) -> None:
    """Callers at random over twice as many models as fit, some of which give up while they wait."""

    async def main() -> None:
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
                    assert sum(file.stat().st_size for file in lab.folder.glob("*/1/model.onnx")) <= 1000
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

    run(main())


def test_an_error_of_another_kind_is_told_and_ends_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())
