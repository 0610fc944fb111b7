from __future__ import annotations

import asyncio
import os
from collections import UserDict
from contextlib import suppress
from pathlib import Path

import pytest

from control_plane.core.errors import DeadlineExceeded, ModelLoadFailed, ModelNotFound, Overloaded, StoreUnavailable
from control_plane.models.domain.description import Tier
from control_plane.models.domain.model_source import ModelSource, WarmCopy
from tests.fakes.triton.model_store import FakeModelStore
from tests.unit.models.tiers.tiers_bench import bench, model, until


async def test_a_cold_model_becomes_warm_as_it_is_in_the_store(tmp_path: Path) -> None:
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


async def test_what_no_store_has_is_another_sources_and_is_here(tmp_path: Path) -> None:
    async with bench(tmp_path, FakeModelStore({})) as lab:
        assert lab.tiers.tier_of("elsewhere") is Tier.WARM
        assert lab.tiers.expected_fetch_s("elsewhere") == 0


async def test_all_who_want_a_model_at_the_same_time_wait_for_one_fetch(tmp_path: Path) -> None:
    store = FakeModelStore({"m": model()})
    async with bench(tmp_path, store) as lab:
        folders = await asyncio.gather(*(lab.warm("m") for _ in range(50)))
        assert set(folders) == {lab.folder / "m"}
        assert [path for _, path, _ in store.reads] == ["1/model.onnx"]  # the other one is empty


async def test_a_fetch_goes_on_when_all_who_waited_have_left(tmp_path: Path) -> None:
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


async def test_a_warm_model_needs_no_store(tmp_path: Path) -> None:
    store = FakeModelStore({"m": model()})
    async with bench(tmp_path, store) as lab:
        await lab.warm("m")
        store.is_away = True
        await lab.tiers.refresh()
        assert lab.tiers.names() == ["m"]
        await lab.warm("m")


async def test_a_restart_takes_over_what_is_there_and_fetches_nothing(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("is_by_time", [True, False], ids=["seen by its time", "seen by its digest"])
async def test_a_copy_that_was_changed_while_nobody_ran_is_fetched_again(tmp_path: Path, is_by_time: bool) -> None:
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


async def test_a_file_that_vanishes_while_it_runs_is_fetched_again(tmp_path: Path) -> None:
    async with bench(tmp_path, FakeModelStore({"m": model()})) as lab:
        (await lab.warm("m") / "1/model.onnx").unlink()
        assert (await lab.warm("m") / "1/model.onnx").exists()
        assert lab.moves.seen == [("m", "cold to warm", 100), ("m", "warm to cold", 100), ("m", "cold to warm", 100)]


async def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    async with bench(tmp_path, FakeModelStore({name: model(300) for name in "abcd"})) as lab:
        for name in "abcad":
            await lab.warm(name)
        assert lab.held() == ["a", "c", "d"]
        assert ("b", "warm to cold", 300) in lab.moves.seen
    async with bench(tmp_path, FakeModelStore({name: model(300) for name in "abcd"})) as lab:
        await lab.warm("b")  # the order of use has survived
        assert lab.held() == ["a", "b", "d"]


async def test_worth_decides_where_it_is_given(tmp_path: Path) -> None:
    worth = {"a": 1.0, "b": 3.0, "c": 2.0}
    async with bench(tmp_path, FakeModelStore({name: model(300) for name in "abcd"}), worth=worth.__getitem__) as lab:
        for name in "cbad":
            await lab.warm(name)
        assert lab.held() == ["b", "c", "d"]


async def test_what_is_pinned_stays_and_room_that_it_takes_is_refused_without_evicting_in_vain(tmp_path: Path) -> None:
    async with bench(tmp_path, FakeModelStore({"a": model(400), "b": model(400), "big": model(900)})) as lab:
        await lab.warm("a")
        with lab.tiers.pinned("a"), lab.tiers.pinned("a"):
            await lab.warm("b")
            with pytest.raises(Overloaded, match="no room in the warm tier for model 'big': 300 bytes too many"):
                await lab.warm("big")
            assert lab.held() == ["a", "b"]
        await lab.warm("big")
        assert lab.held() == ["big"]


async def test_what_could_never_fit_says_what_to_raise(tmp_path: Path) -> None:
    async with bench(tmp_path, FakeModelStore({"a": model(400), "huge": model(1001)})) as lab:
        await lab.warm("a")
        with pytest.raises(ModelLoadFailed, match="'huge' has 1001 bytes and the warm tier 1000: raise --warm-bytes"):
            await lab.warm("huge")
        assert (lab.held(), lab.partials()) == (["a"], [])


async def test_fetches_at_the_same_time_keep_within_the_bytes_together(tmp_path: Path) -> None:
    store = FakeModelStore({name: model(300) for name in "abcdefgh"})
    most = 0

    def look(path: str, span: range) -> None:
        nonlocal most
        folder = tmp_path / "warm"
        total = 0
        # Another fetch may finish or end meanwhile, and move what was just listed: `walk` passes over such folders.
        for inside, _, files in os.walk(folder):
            with suppress(FileNotFoundError):
                total += os.stat(f"{inside}/model.onnx").st_size if "model.onnx" in files and "trash" not in inside else 0
        most = max(most, total)

    store.on_read = look
    async with bench(tmp_path, store) as lab:
        results = await asyncio.gather(*(lab.warm(name) for name in "abcdefgh"), return_exceptions=True)
        assert {type(result) for result in results} <= {type(tmp_path), Overloaded}
        assert len(lab.held()) <= 3
        assert 0 < most <= 1000


async def test_an_ensemble_is_warm_once_all_that_it_needs_is_and_a_pin_holds_them_too(tmp_path: Path) -> None:
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


async def test_a_changed_model_is_taken_up_unless_it_is_pinned(tmp_path: Path) -> None:
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


async def test_an_older_copy_is_served_while_the_new_one_cannot_be_had(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FakeModelStore({"m": model(600), "pinned": model(300)})
    async with bench(tmp_path, store) as lab:
        path = await lab.warm("m") / "1/model.onnx"
        await lab.warm("pinned")
        with lab.tiers.pinned("pinned"):
            store.models["m"] = model(1001, b"n")
            await lab.tiers.refresh()
            await lab.warm("m")
            assert path.read_bytes() == b"w" * 600
    assert "has changed and cannot be fetched; what is warm is served: model 'm' has 1001 bytes" in caplog.text


async def test_what_an_earlier_life_left_is_expected_to_take_its_verification(tmp_path: Path) -> None:
    store = FakeModelStore({"m": model(600)})
    async with bench(tmp_path, store) as lab:
        await lab.warm("m")
    async with bench(tmp_path, store) as lab:
        assert lab.tiers.expected_fetch_s("m") == 600 / 500e6
        await lab.warm("m")
        assert lab.tiers.expected_fetch_s("m") == 0


async def test_a_model_that_has_just_come_is_found_before_the_next_listing(tmp_path: Path) -> None:
    store = FakeModelStore({})
    async with bench(tmp_path, store) as lab:
        store.models["new"] = model()
        await lab.warm("new")
        assert store.listings == 1


@pytest.mark.parametrize("name", ["nobody", "../m", "m\u00f6del", ".tidegate", "", "a" * 300])
async def test_what_no_store_has_is_not_found(tmp_path: Path, name: str) -> None:
    async with bench(tmp_path, FakeModelStore({"m": model()})) as lab:
        with pytest.raises(ModelNotFound, match=r"no model 'nobody' in fake://cold|cannot be a model's name"):
            await lab.warm(name)


async def test_a_name_belongs_to_the_first_store_and_before_it_to_a_plain_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = FakeModelStore({"m": model(1)}, "fake://1"), FakeModelStore({"m": model(2), "local": model()}, "fake://2")
    async with bench(tmp_path, first, second, taken=lambda: ["local"]) as lab:
        assert lab.tiers.names() == ["m"]
        assert len((await lab.warm("m") / "1/model.onnx").read_bytes()) == 1
        with pytest.raises(ModelNotFound):
            await lab.warm("local")
    async with bench(tmp_path, first, second, taken=lambda: ["m"]) as lab:
        assert lab.held() == []  # or two sources of the managed repository would have the name
    assert "model m in fake://2 has the name of one in fake://1, which is the one that is served" in caplog.messages
    assert "model local in fake://2 has the name of one in a model repository, which is the one that is served" in caplog.messages


class Counted(UserDict[str, tuple[str, ...]]):
    """Mapping of models to the models that they need; counts its lookups."""

    lookups = 0

    def __getitem__(self, model: str) -> tuple[str, ...]:
        self.lookups += 1
        return super().__getitem__(model)


async def test_what_is_pinned_is_found_out_once_for_all_copies(tmp_path: Path) -> None:
    """Hundreds may be pinned beside thousands of copies, and each eviction asks."""
    async with bench(tmp_path) as lab:
        needs = Counted({f"pinned{number}": ("c7",) for number in range(50)})
        lab.tiers._copies = {f"c{number}": WarmCopy(f"c{number}", "1", ()) for number in range(100)}
        lab.tiers._needs = needs  # type: ignore[assignment]
        lab.tiers._pins.update(list(needs))
        assert lab.tiers._evictable(ModelSource("new", ())) == [f"c{number}" for number in range(100) if number != 7]
        assert needs.lookups == 50
