from __future__ import annotations

import gzip
import zlib
from contextlib import suppress
from itertools import pairwise

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.errors import InvalidRequest, NotSupported, PayloadTooLarge
from control_plane.protocols.grpc import (
    HEAD,
    GrpcAnswer,
    GrpcHead,
    GrpcStatus,
    MessageReader,
    answer_of,
    append_in_place,
    frame_message,
    message_answer,
    message_in,
    read_head,
    status_answer,
    status_fields,
    timeout_value,
)
from control_plane.protocols.http2.headers import Fields
from control_plane.protocols.kserve.requests.body_limits import InflateBound

PLAIN: Fields = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b":authority", b"h:1"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


def with_(*fields: tuple[bytes, bytes]) -> Fields:
    """The fields of a plain head, with these added or replaced."""
    replaced = dict(fields)
    return (*(each for each in PLAIN if each[0] not in replaced), *fields)


class TestHead:
    def test_of_a_plain_call(self) -> None:
        head = read_head(PLAIN)
        assert (head.method, head.timeout_s, head.encoding) == ("/a.B/C", None, b"identity")
        assert head.metadata == ((b"content-type", b"application/grpc"),)

    def test_credentials_do_not_show_in_what_is_printed(self) -> None:
        assert "secret" not in repr(read_head(with_((b"x-api-key", b"tg_secret"))))

    def test_equal_fields_are_one_head(self) -> None:
        assert read_head(with_((b"x", b"1"))) is read_head((*with_((b"x", b"1")),))

    def test_metadata_goes_on_in_order_and_as_often_as_it_came(self) -> None:
        sent = ((b"x-b", b"1"), (b"x-a", b"2"), (b"x-b", b"3"), (b"x-bin", b"AAEC"), (b"grpc-encoding", b"gzip"))
        head = read_head(with_(*sent, (b"grpc-timeout", b"1S")))
        assert head.metadata[1:] == sent
        assert head.encoding == b"gzip"

    @pytest.mark.parametrize(
        ("value", "expected_s"),
        [(b"5S", 5.0), (b"250m", 0.25), (b"7u", 7e-6), (b"99999999n", 0.099999999), (b"2M", 120.0), (b"1H", 3600.0), (b"0m", 0.0)],
    )
    def test_timeouts(self, value: bytes, expected_s: float) -> None:
        assert read_head(with_((b"grpc-timeout", value))).timeout_s == pytest.approx(expected_s)

    @pytest.mark.parametrize("value", [b"", b"5", b"S", b"-1S", b"1.5S", b"123456789m", b"5 S", b"5s", b"5S\n", "\u0665S".encode()])
    def test_timeouts_that_cannot_be(self, value: bytes) -> None:
        with pytest.raises(InvalidRequest):
            read_head(with_((b"grpc-timeout", value)))

    @pytest.mark.parametrize("content_type", [b"application/grpc", b"application/grpc+proto", b"application/grpc;charset=utf-8"])
    def test_content_types(self, content_type: bytes) -> None:
        assert read_head(with_((b"content-type", content_type))).method == "/a.B/C"

    @pytest.mark.parametrize(
        "content_type", [b"", b"application/json", b"application/grpc-web", b"application/grpcx", b"xapplication/grpc"]
    )
    def test_other_content_types(self, content_type: bytes) -> None:
        with pytest.raises(NotSupported, match="speaks gRPC"):
            read_head(with_((b"content-type", content_type)))

    @pytest.mark.parametrize(
        "field",
        [
            pytest.param((b":method", b"GET"), id="GET"),
            pytest.param((b":path", b"*"), id="no path"),
            pytest.param((b"connection", b"close"), id="a connection's"),
            pytest.param((b"transfer-encoding", b"chunked"), id="a body's"),
            pytest.param((b"X-Upper", b"1"), id="upper case"),
            pytest.param((b"x y", b"1"), id="a space in a name"),
            pytest.param((b"", b"1"), id="no name"),
            pytest.param((b"x", b"a\r\nb: c"), id="two lines"),
            pytest.param((b"x", b"a\0"), id="a NUL"),
            pytest.param((b"x", b"\xff"), id="beyond ASCII"),
        ],
    )
    def test_what_would_break_a_connection_that_others_share_is_refused(self, field: tuple[bytes, bytes]) -> None:
        with pytest.raises(InvalidRequest):
            read_head(with_(field))

    @given(st.lists(st.tuples(st.sampled_from([name for name, _ in PLAIN]) | st.binary(max_size=8), st.binary(max_size=12)), max_size=6))
    def test_any_fields_are_a_head_or_refused(self, fields: list[tuple[bytes, bytes]]) -> None:
        for each in (tuple(fields), with_(*fields)):
            with suppress(InvalidRequest, NotSupported):
                assert read_head(each).method.startswith("/")


@pytest.mark.parametrize(
    ("timeout_s", "expected"), [(5.0, b"5000m"), (0.0001, b"1m"), (0.0, b"1m"), (-3.0, b"1m"), (0.0011, b"2m"), (1e9, b"99999999m")]
)
def test_what_is_left_of_a_timeout_is_rounded_up(timeout_s: float, expected: bytes) -> None:
    assert timeout_value(timeout_s) == expected


class TestMessageReader:
    @given(
        messages=st.lists(st.binary(max_size=300), max_size=8),
        cuts=st.lists(st.integers(0, 2_500), max_size=10),
        as_views=st.booleans(),
    )
    def test_messages_are_the_same_in_whatever_slices_they_come(self, messages: list[bytes], cuts: list[int], as_views: bool) -> None:
        data, reader = b"".join(map(frame_message, messages)), MessageReader(1_000)
        bounds = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
        slices = [data[start:end] for start, end in pairwise(bounds)]
        frames = [bytes(frame) for each in slices for frame in reader.feed(memoryview(each) if as_views else each)]
        assert frames == [frame_message(message) for message in messages]
        assert reader.is_between_messages

    @given(
        messages=st.lists(st.binary(max_size=300), max_size=12),
        cuts=st.lists(st.integers(0, 2_500), max_size=6),
        most=st.integers(1, 3),
        takes_between=st.booleans(),
    )
    def test_messages_are_the_same_however_few_are_taken_at_a_time(
        self, messages: list[bytes], cuts: list[int], most: int, takes_between: bool
    ) -> None:
        data, reader = b"".join(map(frame_message, messages)), MessageReader(1_000)
        bounds = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
        taken = []
        for start, end in pairwise(bounds):
            taken += (few := reader.feed(data[start:end], most))
            assert len(few) <= most
            taken += reader.split_more(most) if takes_between else []
        while reader.has_backlog:
            taken += (few := reader.split_more(most))
            assert len(few) <= most
        assert list(map(bytes, taken)) == list(map(frame_message, messages))
        assert reader.is_between_messages

    def test_a_large_one_comes_together(self) -> None:
        message, reader = bytes(range(256)) * (3 << 12), MessageReader(1 << 30)
        frame = frame_message(message)
        got = [each for at in range(0, len(frame), 100_000) for each in reader.feed(memoryview(frame)[at : at + 100_000])]
        assert [bytes(each) for each in got] == [frame]

    def test_a_field_is_appended_to_a_large_one_where_it_is(self) -> None:
        message, reader = bytes(range(256)) * 64, MessageReader(1 << 30)
        frame = frame_message(message)
        (got,) = [*reader.feed(frame[:1000]), *reader.feed(frame[1000:] + b"")]
        longer = append_in_place(got, b"field")
        assert isinstance(got, memoryview)
        assert isinstance(longer, memoryview)
        assert bytes(longer) == frame_message(message + b"field")
        assert longer.obj is got.obj
        assert append_in_place(longer, b"field") is None, "there is room for one"

    @pytest.mark.parametrize(
        "frame",
        [
            pytest.param(frame_message(b"small"), id="in one piece"),
            pytest.param(memoryview(bytearray(frame_message(b"own"))), id="without room"),
            pytest.param(memoryview(bytearray(b"\1" + frame_message(b"x")[1:] + bytes(64)))[:6], id="compressed"),
        ],
    )
    def test_where_there_is_no_room_nothing_is_changed(self, frame: bytes | memoryview) -> None:
        before = bytes(frame)
        assert append_in_place(frame, b"field") is None
        assert bytes(frame) == before

    def test_more_than_there_is_room_for_is_not_appended(self) -> None:
        whole = bytearray(frame_message(b"x") + bytes(64))
        assert append_in_place(memoryview(whole)[:6], bytes(65)) is None
        assert append_in_place(memoryview(whole)[:6], bytes(64)) is not None

    def test_tells_how_large_the_one_is_that_has_begun(self) -> None:
        reader = MessageReader(1_000)
        frame = frame_message(bytes(100))
        assert (reader.partial_bytes, reader.is_between_messages) == (0, True)
        reader.feed(frame[:3])
        assert (reader.partial_bytes, reader.is_between_messages) == (0, False)
        reader.feed(frame[3:50])
        assert (reader.partial_bytes, reader.is_between_messages) == (105, False)
        assert len(reader.feed(frame[50:])) == 1
        assert (reader.partial_bytes, reader.is_between_messages) == (0, True)

    def test_one_that_is_too_long_is_refused_on_its_prefix(self) -> None:
        assert MessageReader(10).feed(frame_message(bytes(10)))
        with pytest.raises(PayloadTooLarge, match="11 bytes exceeds the limit of 10"):
            MessageReader(10).feed(b"\0\0\0\0\x0b")

    def test_one_behind_another_too(self) -> None:
        with pytest.raises(PayloadTooLarge):
            MessageReader(10).feed(frame_message(b"x") + b"\0\xff\xff\xff\xff")

    def test_thousands_in_one_piece_cost_no_more_than_their_bytes(self) -> None:
        assert len(MessageReader(10).feed(frame_message(b"") * 500_000)) == 500_000  # a copy of the rest for each would be 600 GB


class TestCompression:
    @pytest.mark.parametrize(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
    def test_a_compressed_message_is_read(self, encoding: bytes, compress: object) -> None:
        content = compress(b"message" * 100)  # type: ignore[operator]
        assert bytes(message_in(b"\1" + frame_message(content)[1:], encoding, InflateBound(1_000, "1000 bytes"))) == b"message" * 100

    def test_one_that_is_not_may_come_with_an_encoding(self) -> None:
        assert bytes(message_in(frame_message(b"x"), b"gzip", InflateBound(10, ""))) == b"x"

    def test_a_bomb_is_refused_without_being_unpacked(self) -> None:
        frame = b"\1" + frame_message(gzip.compress(bytes(1 << 20)))[1:]
        assert len(message_in(frame, b"gzip", InflateBound(1 << 20, ""))) == 1 << 20
        with pytest.raises(PayloadTooLarge, match="exceeds 1048575 bytes"):
            message_in(frame, b"gzip", InflateBound((1 << 20) - 1, "exceeds 1048575 bytes"))

    @pytest.mark.parametrize(
        ("content", "encoding", "error"),
        [
            pytest.param(b"not gzip", b"gzip", InvalidRequest, id="something else"),
            pytest.param(b"", b"gzip", InvalidRequest, id="nothing"),
            pytest.param(gzip.compress(b"x" * 50)[:-3], b"gzip", InvalidRequest, id="cut off"),
            pytest.param(gzip.compress(b"x") + b"y", b"gzip", InvalidRequest, id="more behind it"),
            pytest.param(gzip.compress(b"x") * 2, b"gzip", InvalidRequest, id="two members"),
            pytest.param(b"x", b"identity", NotSupported, id="compressed with nothing"),
            pytest.param(b"x", b"snappy\xff", NotSupported, id="another"),
        ],
    )
    def test_what_cannot_be_read(self, content: bytes, encoding: bytes, error: type[Exception]) -> None:
        with pytest.raises(error):
            message_in(b"\1" + frame_message(content)[1:], encoding, InflateBound(1_000, "1000 bytes"))


class TestAnswers:
    def test_a_message(self) -> None:
        answer = message_answer(b"abc")
        assert (answer.code, answer.headers, b"".join(answer.body)) == (0, HEAD, b"\0\0\0\0\3abc")
        assert (answer.message, answer.trailers, answer.details) == (b"abc", ((b"grpc-status", b"0"),), "")

    def test_a_status_comes_with_its_own_head(self) -> None:
        answer = status_answer(5, "no such model")
        assert (answer.headers, answer.body) == ((), ())
        assert answer.trailers == (*HEAD, (b"grpc-status", b"5"), (b"grpc-message", b"no such model"))

    def test_for_a_call_whose_head_is_sent_it_has_none(self) -> None:
        assert status_answer(5, "x").ending() == GrpcAnswer(5, (), (), ((b"grpc-status", b"5"), (b"grpc-message", b"x")))

    @given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
    def test_any_details_are_told_in_printable_ascii_and_read_back(self, details: str) -> None:
        fields = status_fields(2, details)
        assert all(0x20 <= byte <= 0x7E for _, value in fields for byte in value)
        assert answer_of((), (), fields).details == details

    def test_readable_text_stays_readable(self) -> None:
        assert dict(status_fields(2, "a b/c, 100%"))[b"grpc-message"] == b"a b/c, 100%25"

    @pytest.mark.parametrize("status", [None, b"", b"x", b"-1", b"1000", "\u0663".encode()])
    def test_an_answer_without_a_status_is_unknown(self, status: bytes | None) -> None:
        assert answer_of((), (), () if status is None else ((b"grpc-status", status),)).code == grpc.StatusCode.UNKNOWN.value[0]

    def test_of_a_server(self) -> None:
        answer = answer_of(HEAD, (b"\0\0\0\0\2", b"ab"), ((b"grpc-status", b"0"), (b"x", b"y")))
        assert (answer.code, answer.message, answer.trailers[1]) == (0, b"ab", (b"x", b"y"))

    def test_heads_are_compared_by_identity(self) -> None:
        assert GrpcHead("/a") != GrpcHead("/a")


def test_the_statuses_are_those_of_grpc() -> None:
    assert {each.name: each.value for each in GrpcStatus} == {each.name: each.value[0] for each in grpc.StatusCode}
