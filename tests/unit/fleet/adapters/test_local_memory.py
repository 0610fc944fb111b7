from __future__ import annotations

import logging
from pathlib import Path

import pytest

from control_plane.core.errors import StoreUnavailable
from control_plane.fleet.adapters.local_memory import LocalFleetMemory
from control_plane.fleet.domain.memory import DesiredState, Measured

KNOWN = Measured(5, load_s=2.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.json"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"measured":{}}', b'{"measured":[],"wishes":{}}', b"\xff\x00", b"[" * 100_000]
)
async def test_a_damaged_file_is_set_aside_and_its_place_taken(path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    path.write_bytes(content)
    memory = LocalFleetMemory(path)
    assert await memory.measured() == {}
    assert path.with_suffix(".damaged").read_bytes() == content
    await memory.measure({"a": KNOWN})
    assert await LocalFleetMemory(path).measured() == {"a": KNOWN}
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_an_entry_that_cannot_be_is_left_out_and_the_rest_stands(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text(
        '{"measured":{"a":{"file_bytes":5,"load_s":2.0,"newer":[]},"b":{"file_bytes":"5"},"../c":{"file_bytes":1},'
        f'"d":{{"file_bytes":0,"failures":{10**400}}}}},"wishes":{{"a":7}}}}'
    )
    with caplog.at_level(logging.WARNING):
        memory = LocalFleetMemory(path)
        assert await memory.measured() == {"a": KNOWN}
        assert await memory.wishes() == {}
    assert len(caplog.records) == 4
    assert path.exists()


async def test_what_cannot_be_written_is_unavailable_and_not_known(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    memory = LocalFleetMemory(tmp_path / "memory.json")
    await memory.measure({"a": KNOWN})
    (tmp_path / "memory.partial").mkdir()
    for call in (memory.measure({"b": KNOWN}), memory.wish({"a": DesiredState(1)})):
        with pytest.raises(StoreUnavailable, match=r"memory\.json cannot be written: Is a directory"):
            await call
    assert (await memory.measured(), await memory.wishes()) == ({"a": KNOWN}, {})
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        await LocalFleetMemory(tmp_path / "file" / "memory.json").measured()
