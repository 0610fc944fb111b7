"""How often a fetch is retried; its results are tested in test_model_tiers.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from control_plane.core.errors import ModelLoadFailed, ModelNotFound, StoreUnavailable
from control_plane.models.adapters.warm_tier.tier import DiskWarmTier
from control_plane.models.domain.model_source import ModelSource, WarmCopy
from control_plane.models.tiers.model_fetch import ModelFetch
from control_plane.models.tiers.stoppable_threads import StoppableThreads
from tests.aio import run
from tests.fakes.triton.model_store import FakeModelStore

CHUNK_BYTES = 10


def fetch(folder: Path, store: FakeModelStore) -> tuple[WarmCopy, list[int]]:
    """Run a fetch; return the copy, and the bytes that room was made for each time."""
    rooms: list[int] = []

    async def make_room(source: ModelSource) -> None:
        rooms.append(source.bytes)

    async def main() -> WarmCopy:
        tier, threads = DiskWarmTier(folder / "warm", max_bytes=1000, chunk_bytes=CHUNK_BYTES), StoppableThreads(4, name="t")
        tier.open()
        try:
            return await ModelFetch("m", store=store, warm=tier, threads=threads, first_delay_s=0.0001).run(make_room)
        finally:
            threads.close()
            tier.close()

    return run(main()), rooms


def breaking(store: FakeModelStore, at: set[int]) -> None:
    """Make the reads with these numbers break off."""

    def look(path: str, span: range) -> None:
        if len(store.reads) in at:
            raise StoreUnavailable("broken")

    store.on_read = look


def test_breaks_with_bytes_between_them_are_never_too_many_and_no_byte_comes_twice(tmp_path: Path) -> None:
    store = FakeModelStore({"m": {"x": bytes(200)}})
    breaking(store, set(range(2, 40, 2)))
    copy, rooms = fetch(tmp_path, store)
    assert (copy.bytes, rooms, len(store.reads)) == (200, [200], 20 + 19)


@pytest.mark.parametrize("at", [1, 2])
def test_five_breaks_without_a_byte_between_them_end_it_and_what_has_come_stays(tmp_path: Path, at: int) -> None:
    store = FakeModelStore({"m": {"x": bytes(20)}})
    breaking(store, set(range(at, 100)))
    with pytest.raises(StoreUnavailable):
        fetch(tmp_path, store)
    assert len(store.reads) == at + 4
    left = [path.stat().st_size for path in (tmp_path / "warm/.tidegate/partial/m").glob("*/x")]
    assert left == [(at - 1) * CHUNK_BYTES]


def test_what_is_too_often_damaged_is_given_up_and_only_that_file_is_fetched_again(tmp_path: Path) -> None:
    store = FakeModelStore({"m": {"SHA256SUMS": b"0" * 64 + b"  bad\n", "bad": b"b", "good": b"g"}})
    with pytest.raises(ModelLoadFailed, match="bad of model 'm' has the SHA-256"):
        fetch(tmp_path, store)
    asked = [path for _, path, _ in store.reads]
    assert (asked.count("bad"), asked.count("good")) == (4, 1)


def test_what_no_other_try_can_mend_is_tried_once(tmp_path: Path) -> None:
    store = FakeModelStore({})
    with pytest.raises(ModelNotFound):
        fetch(tmp_path, store)


def test_a_change_makes_room_for_what_there_is_then(tmp_path: Path) -> None:
    store = FakeModelStore({"m": {"x": bytes(30)}})

    def grow(path: str, span: range) -> None:
        if len(store.reads) == 2:
            store.models["m"] = {"x": b"n" * 50}

    store.on_read = grow
    copy, rooms = fetch(tmp_path, store)
    assert (copy.bytes, rooms) == (50, [30, 50])
    assert (tmp_path / "warm/m/x").read_bytes() == b"n" * 50
