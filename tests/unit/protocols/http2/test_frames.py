from __future__ import annotations

from itertools import pairwise

import pytest
from hyperframe.frame import Frame as PeersFrame
from hyperframe.frame import GoAwayFrame, PingFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame
from hypothesis import given
from hypothesis import strategies as st

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Code, FrameReader, Http2Error, Setting

FRAMES = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, h2.MAX_STREAM_ID), st.binary(max_size=40)), max_size=8)


def written(frames: list[tuple[int, int, int, bytes]]) -> bytes:
    return b"".join(h2.frame_head(kind, flags, stream_id, len(payload)) + payload for kind, flags, stream_id, payload in frames)


@given(frames=FRAMES, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_frames_are_the_same_in_whatever_slices_they_come(frames: list[tuple[int, int, int, bytes]], cuts: list[int]) -> None:
    data, reader = written(frames), FrameReader(100)
    bounds = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    assert [frame for start, end in pairwise(bounds) for frame in reader.feed(data[start:end])] == frames


def test_of_heads_that_take_long_to_read_few_are_taken_at_a_time() -> None:
    """A head of 500 bytes may have 80 fields."""
    reader = FrameReader(1 << 14)
    reader.add(written([(h2.HEADERS, h2.END_HEADERS, 2 * number + 1, bytes(500)) for number in range(9)]))
    taken = [len(reader.split_more(6))]
    while reader.has_backlog:
        taken.append(len(reader.split_more(6)))
    assert (max(taken), sum(taken)) == (2, 9)


@given(frames=FRAMES, cuts=st.lists(st.integers(0, 400), max_size=6), most=st.integers(1, 3))
def test_frames_are_the_same_however_few_are_taken_at_a_time(frames: list[tuple[int, int, int, bytes]], cuts: list[int], most: int) -> None:
    data, reader = written(frames), FrameReader(100)
    bounds = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    taken = []
    for start, end in pairwise(bounds):
        reader.add(data[start:end])
        taken += (few := reader.split_more(most))
        assert len(few) <= most
    while reader.has_backlog:
        taken += reader.split_more(most)
    assert taken == frames


def test_large_data_is_whole_byte_by_byte_too() -> None:
    frame = (h2.DATA, 0, 1, bytes(range(256)) * 100)
    data = written([frame])
    whole, dripped = FrameReader(1 << 16), FrameReader(1 << 16)
    assert whole.feed(data) == [frame]
    assert [each for at in range(len(data)) for each in dripped.feed(data[at : at + 1])] == [frame]


SIZES = st.sampled_from([0, 1, 2047, 16_383, 16_384, 16_385, 40_000])


@given(
    frames=st.lists(
        st.tuples(SIZES, st.booleans(), st.sampled_from([1, 1, 1, 3]), st.sampled_from([h2.DATA, h2.DATA, h2.DATA, h2.PING])), max_size=9
    ),
    cuts=st.lists(st.integers(0, 200_000), max_size=12),
    most=st.integers(1, 3),
)
def test_runs_have_the_same_bytes_and_the_same_ends(frames: list[tuple[int, bool, int, int]], cuts: list[int], most: int) -> None:
    """Each stream's bytes and the ends in them, and whatever else comes, in the order in which they came."""
    sent = [(kind, int(ends), stream_id, bytes([number]) * size) for number, (size, ends, stream_id, kind) in enumerate(frames)]
    data, reader, got = written(sent), FrameReader(1 << 16, in_runs=True), []
    bounds = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for start, end in pairwise(bounds):
        reader.add(data[start:end])
        got += reader.split_more(most)
        while reader.has_backlog:
            got += reader.split_more(most)

    def pieces(of: list[h2.Frame]) -> list[tuple[int, int, bytes]]:
        """Each byte, and each end, by type and stream."""
        joined: list[tuple[int, int, bytes]] = []
        for kind, flags, stream_id, payload in of:
            if joined and joined[-1][:2] == (kind, stream_id) and kind == h2.DATA and not joined[-1][2].endswith(b"END"):
                joined[-1] = (kind, stream_id, joined[-1][2] + payload)
            else:
                joined.append((kind, stream_id, bytes(payload)))
            if flags & h2.END_STREAM:
                joined[-1] = (kind, stream_id, joined[-1][2] + b"END")
        return joined

    assert pieces(got) == pieces(sent)


def test_large_data_of_one_stream_that_came_together_is_one_frame() -> None:
    frames = [*[(h2.DATA, 0, 1, bytes(16_384))] * 7, (h2.DATA, h2.END_STREAM, 1, b"end"), (h2.DATA, 0, 3, bytes(16_384))]
    taken = FrameReader(1 << 16, in_runs=True).feed(written(frames))
    assert [(flags, stream_id, len(payload)) for _, flags, stream_id, payload in taken] == [
        (h2.END_STREAM, 1, 7 * 16_384 + 3),
        (0, 3, 16_384),
    ]


def test_a_run_ends_where_a_frame_is_small_padded_or_another_streams_and_at_256_kb() -> None:
    large = (h2.DATA, 0, 1, bytes(16_384))
    for other in (
        (h2.DATA, 0, 1, bytes(100)),
        (h2.DATA, h2.PADDED, 1, bytes(16_384)),
        (h2.DATA, 0, 3, bytes(16_384)),
        (h2.PING, 0, 0, bytes(8)),
    ):
        assert FrameReader(1 << 14, in_runs=True).feed(written([large, other, large])) == [large, other, large]
    taken = FrameReader(1 << 14, in_runs=True).feed(written([large] * 40))
    assert [len(payload) for *_, payload in taken] == [1 << 18, 1 << 18, 1 << 17]
    with pytest.raises(Http2Error, match="at most 16384"):
        FrameReader(1 << 14, in_runs=True).feed(written([large, (h2.DATA, 0, 1, bytes(16_385))]))


def test_of_large_data_what_has_come_is_taken_as_it_lies() -> None:
    """Without a copy, though its end is still to come; but what came with more of others' is copied, and does not keep that."""
    reader = FrameReader(1 << 18, in_runs=True)
    data = written([(h2.DATA, h2.END_STREAM, 1, bytes(200_000)), (h2.PING, 0, 0, bytes(8))])
    ((_, flags, stream_id, first),) = reader.feed(data[:150_000])
    assert (flags, stream_id, len(first)) == (h2.MORE, 1, 150_000 - 9)
    assert isinstance(first, memoryview)
    (_, flags, _, rest), ping = reader.feed(data[150_000:])
    assert (flags, len(rest), ping[0]) == (h2.END_STREAM, 50_009, h2.PING)
    assert isinstance(rest, memoryview)
    several = FrameReader(1 << 18, in_runs=True).feed(written([(h2.DATA, 0, stream_id, bytes(16_384)) for stream_id in (1, 3, 5)]))
    assert {type(payload) for *_, payload in several} == {bytes}


def test_the_streams_reserved_bit_is_ignored() -> None:
    assert FrameReader(10).feed(h2.frame_head(h2.DATA, 0, 1 << 31 | 5, 0)) == [(h2.DATA, 0, 5, b"")]


def test_a_frame_that_is_too_long_is_refused_on_its_head() -> None:
    reader = FrameReader(100)
    assert reader.feed(h2.frame_head(h2.DATA, 0, 1, 100)) == []
    assert len(reader.feed(bytes(100))) == 1
    with pytest.raises(Http2Error) as caught:
        reader.feed(h2.frame_head(h2.DATA, 0, 1, 101))
    assert caught.value.http2_code is Code.FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("frame", "kind", "expected"),
    [
        pytest.param(h2.ping_ack(b"12345678"), PingFrame, {"opaque_data": b"12345678", "flags": {"ACK"}}, id="ping"),
        pytest.param(h2.SETTINGS_ACK, SettingsFrame, {"settings": {}, "flags": {"ACK"}}, id="settings acknowledged"),
        pytest.param(
            h2.settings_frame({Setting.INITIAL_WINDOW_SIZE: 7, Setting.MAX_FRAME_SIZE: 1 << 20}),
            SettingsFrame,
            {"settings": {4: 7, 5: 1 << 20}, "stream_id": 0},
            id="settings",
        ),
        pytest.param(h2.rst_stream(3, Code.CANCEL), RstStreamFrame, {"error_code": 8, "stream_id": 3}, id="reset"),
        pytest.param(h2.window_update(3, 99), WindowUpdateFrame, {"window_increment": 99, "stream_id": 3}, id="window"),
        pytest.param(
            h2.goaway(7, Code.PROTOCOL_ERROR, "w\u00e4h"),
            GoAwayFrame,
            {"last_stream_id": 7, "error_code": 1, "additional_data": "w\u00e4h".encode()},
            id="goaway",
        ),
    ],
)
def test_what_we_write_another_library_reads(frame: bytes, kind: type[PeersFrame], expected: dict[str, object]) -> None:
    read, length = PeersFrame.parse_frame_header(memoryview(frame[:9]))
    assert length == len(frame) - 9
    read.parse_body(memoryview(frame[9:]))
    assert isinstance(read, kind)
    for name, value in expected.items():
        seen = getattr(read, name)
        assert (set(seen) if name == "flags" else seen) == value


def test_a_long_reason_is_cut() -> None:
    assert len(h2.goaway(0, Code.NO_ERROR, "x" * 10_000)) < 300


def test_settings_that_repeat_count_as_the_last() -> None:
    assert h2.read_settings(bytes(6 * 32)) == {0: 0}
    with pytest.raises(Http2Error) as caught:
        h2.read_settings(bytes(6 * 33))
    assert caught.value.http2_code is Code.ENHANCE_YOUR_CALM
    assert h2.read_settings(b"\0\4\0\0\0\1" + b"\0\4\0\0\0\2" + b"\xff\xff\0\0\0\3") == {4: 2, 0xFFFF: 3}


@pytest.mark.parametrize("payload", [b"\0", bytes(5), bytes(7)])
def test_settings_of_an_odd_length(payload: bytes) -> None:
    with pytest.raises(Http2Error, match="multiple of six") as caught:
        h2.read_settings(payload)
    assert caught.value.http2_code is Code.FRAME_SIZE_ERROR


@pytest.mark.parametrize("payload", [b"", bytes(3), bytes(5)])
def test_a_number_of_another_length(payload: bytes) -> None:
    with pytest.raises(Http2Error, match="RST_STREAM") as caught:
        h2.read_word(payload, "RST_STREAM")
    assert caught.value.http2_code is Code.FRAME_SIZE_ERROR


@given(content=st.binary(max_size=30), padding=st.integers(0, 255), skip=st.sampled_from([0, 5]))
def test_padding_and_priority_are_cut_off(content: bytes, padding: int, skip: int) -> None:
    payload = bytes([padding]) + bytes(skip) + content + bytes(padding)
    assert bytes(h2.without_padding(h2.PADDED, payload, skip=skip)) == content
    assert bytes(h2.without_padding(0, bytes(skip) + content, skip=skip)) == content


@pytest.mark.parametrize(
    ("flags", "payload", "skip"),
    [
        pytest.param(h2.PADDED, b"", 0, id="padded and empty"),
        pytest.param(h2.PADDED, b"\4abc", 0, id="more padding than frame"),
        pytest.param(h2.PADDED, b"\1abcde", 5, id="padding within the priority"),
        pytest.param(0, b"abcd", 5, id="half a priority"),
    ],
)
def test_padding_that_cannot_be(flags: int, payload: bytes, skip: int) -> None:
    with pytest.raises(Http2Error):
        h2.without_padding(flags, payload, skip=skip)


def test_padding_may_be_all_there_is() -> None:
    assert bytes(h2.without_padding(h2.PADDED, b"\3abc")) == b""
