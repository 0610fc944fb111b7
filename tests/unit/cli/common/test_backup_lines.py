from __future__ import annotations

import hashlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.cli.common.backup_lines import Backup, read_backup, write_backup
from control_plane.core.errors import InvalidRequest
from control_plane.metering.domain.usage import Usage, UsageKey
from control_plane.objects.domain.stored import Kind, Stored

BACKUP = Backup(
    [Stored(Kind.TENANT, "größe\n", 3, {"weight": 1.5, "list": [None, {}]}), Stored(Kind.API_KEY, "k", 4, {})],
    [(UsageKey("2026-01-01", "a", "m"), Usage(1, 2, 3, 4, 5, 6.5, 7))],
)
FILE = write_backup(BACKUP)

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_OBJECTS = st.builds(Stored, st.sampled_from(Kind), st.text(), st.integers(1, 2**53), st.dictionaries(st.text(), _JSON, max_size=4))
_COUNT = st.integers(0, 2**53)
_USAGE = st.builds(Usage, *[_COUNT] * 5, st.floats(0, 1e12), _COUNT)
_TOTALS = st.tuples(st.builds(UsageKey, st.text(), st.text(), st.text()), _USAGE)


def with_digest(*lines: bytes) -> bytes:
    content = b"".join(line + b"\n" for line in lines)
    return content + orjson.dumps({"line": "end", "sha256": hashlib.sha256(content).hexdigest()}) + b"\n"


@given(st.lists(_OBJECTS, max_size=5), st.lists(_TOTALS, max_size=5))
def test_what_is_written_is_read(objects: list[Stored], totals: list[tuple[UsageKey, Usage]]) -> None:
    assert read_backup(write_backup(Backup(objects, totals))) == Backup(objects, totals)


def test_it_is_a_line_of_json_each() -> None:
    lines = [orjson.loads(line) for line in FILE.splitlines()]
    assert [line["line"] for line in lines] == ["backup", "object", "object", "usage", "end"]
    assert lines[0] == {"line": "backup", "of": "tidegate", "format": 1}


def test_what_was_deleted_is_not_in_it() -> None:
    gone = Stored(Kind.ROUTE, "gone", 9, None)
    assert write_backup(Backup([*BACKUP.objects, gone], BACKUP.totals)) == FILE


def test_one_that_is_cut_short_anywhere_is_refused() -> None:
    for length in range(len(FILE)):
        with pytest.raises(InvalidRequest):
            read_backup(FILE[:length])


@given(st.integers(0, len(FILE) - 1), st.integers(1, 255))
def test_one_in_which_a_byte_has_changed_is_refused(place: int, by: int) -> None:
    changed = FILE[:place] + bytes([FILE[place] ^ by]) + FILE[place + 1 :]
    with pytest.raises(InvalidRequest):
        read_backup(changed)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        pytest.param(b"", "not a backup by tidegate", id="empty"),
        pytest.param(b"\n", "not a backup by tidegate", id="blank"),
        pytest.param(b"[]\n", "not a backup by tidegate", id="other-json"),
        pytest.param(b'{"line":"backup","of":"else","format":1}\n', "not a backup by tidegate", id="somebody-else's"),
        pytest.param(b'{"line":"backup","of":"tidegate","format":2}\nx', "it has format 2, and this tidegate reads 1", id="newer"),
        pytest.param(FILE + b"\n", "incomplete, or was changed", id="a-line-more"),
        pytest.param(with_digest(FILE.splitlines()[0], b'{"line":"other"}'), "line 2 cannot be read", id="unknown-line"),
        pytest.param(
            with_digest(FILE.splitlines()[0], b'{"line":"object","kind":"ship","name":"a","resource_version":1,"body":{}}'),
            "line 2 cannot be read: 1 fields",
            id="unknown-kind",
        ),
        pytest.param(with_digest(*FILE.splitlines()[:2], b"{"), "line 3 cannot be read", id="no-json"),
    ],
)
def test_what_is_wrong_is_said(file: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        read_backup(file)
