"""Input files of batches: how they are cut into chunks, and how a wrong line is named."""

from __future__ import annotations

from sys import getsizeof
from typing import Any

import orjson
import pytest

from control_plane.batches.domain.input_lines import InputLines, InputReader, line_steps, lines_of
from control_plane.core.algorithms.steps import finish
from control_plane.core.errors import InvalidRequest


def line(custom_id: Any, *, text: Any = "a", **changes: Any) -> bytes:
    body = {"model": "m", "input": text}
    return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body} | changes)


def read_pieces(content: bytes, piece_bytes: int = 1 << 20) -> InputLines:
    reader = InputReader()
    for start in range(0, len(content), piece_bytes):
        finish(reader.feed(content[start : start + piece_bytes]))
    return finish(reader.finish())


def read(*lines: bytes, end: bytes = b"") -> InputLines:
    return read_pieces(b"\n".join(lines) + end)


@pytest.mark.parametrize("piece_bytes", [1, 97, 1 << 20])
@pytest.mark.parametrize("end", [pytest.param(b"", id="cut"), pytest.param(b"\n", id="whole")])
def test_chunks_have_each_line_once(end: bytes, piece_bytes: int) -> None:
    lines = [line(f"line-{number}") for number in range(70)]
    content = b"\n".join(lines) + end

    found = read_pieces(content, piece_bytes)

    assert (found.model, [chunk.lines for chunk in found.chunks]) == ("m", [32, 32, 6])
    names = [each.custom_id for chunk in found.chunks for each in finish(lines_of(content[chunk.start : chunk.end]))]
    assert names == [f"line-{number}" for number in range(70)]


@pytest.mark.parametrize(
    ("lines", "chunks"),
    [
        pytest.param([line(str(number), text=["a"] * 100) for number in range(5)], [2, 2, 1], id="inputs"),
        pytest.param([line(str(number), text=["a" * 30_000] * 5) for number in range(3)], [1, 1, 1], id="bytes"),
        pytest.param([line("a"), line("b", text=["a"] * 2000), line("c")], [1, 1, 1], id="one-large-line"),
    ],
)
def test_chunks_are_bounded(lines: list[bytes], chunks: list[int]) -> None:
    assert [chunk.lines for chunk in read(*lines).chunks] == chunks


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param(b"", "not valid JSON", id="blank"),
        pytest.param(b"[]", "must be a JSON object", id="list"),
        pytest.param(line(""), "custom_id must be a string", id="no-id"),
        pytest.param(line("x" * 513), "custom_id must be a string", id="long-id"),
        pytest.param(line("a"), "that of an earlier line", id="twice"),
        pytest.param(line("b", method="GET"), 'method must be "POST"', id="method"),
        pytest.param(line("b", url="/v1/chat/completions"), 'url must be "/v1/embeddings"', id="url"),
        pytest.param(line("b", body=[]), "body must be a JSON object", id="body"),
        pytest.param(line("b", text=""), "cannot be an empty string", id="input"),
        pytest.param(line("b")[:-2] + b',"user":' + b"[" * 300 + b"]" * 300 + b"}}", "nested too deeply", id="nested"),
        pytest.param(line("b", body={"model": "n", "input": "a"}), "for one model", id="model"),
        pytest.param(line("b", body={"model": "../x", "input": "a"}), "does not exist", id="no-model"),
    ],
)
def test_a_wrong_line_is_named(wrong: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^line 2: ") as refused:
        read(line("a"), wrong, line("c"))
    assert said in str(refused.value)


def long_line(body: bytes) -> bytes:
    return b'{"custom_id": "b", "method": "POST", "url": "/v1/embeddings", "body": %b}' % body


MANY = [
    pytest.param(b'{"input": "a", "x": [' + b"[]," * 500_000 + b"1]}", "more strings and lists", id="lists"),
    pytest.param(
        b'{"input": "a", ' + b",".join(b'"%d":{}' % number for number in range(200_000)) + b"}", "more strings and lists", id="keys"
    ),
    pytest.param(b'{"input": "a", "x": [' + b"0.1," * 500_000 + b"1]}", "without its input", id="numbers"),
    pytest.param(b'{"input": "a"}, "x": [' + b"0.1," * 500_000 + b"1]", "without its body", id="beside-the-body"),
    pytest.param(b'{"input": ["' + b"a" * 200_000 + b'"]}, "body": 1', "body must be a JSON object", id="another-body"),
    pytest.param(b'{"input": ["' + b"a" * 200_000 + b'"]}, "body": null', "body must be a JSON object", id="no-body-after-it"),
    pytest.param(b'{"input": ["' + b"a" * 200_000 + b'"]', "not valid JSON", id="no-end"),
    pytest.param(b'{"input": "' + b"a" * 2_000_000 + b'"}', "longer than any input", id="string"),
]


@pytest.mark.parametrize(("body", "said"), MANY)
def test_a_long_line_of_many_values_is_refused_without_being_parsed_at_once(
    body: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, loads = list[int](), orjson.loads
    monkeypatch.setattr(orjson, "loads", lambda text: (parsed.append(len(text)), loads(text))[1])

    with pytest.raises(InvalidRequest, match=r"^line 2: ") as refused:
        read(line("a"), long_line(body))

    assert said in str(refused.value)
    assert max(parsed, default=0) < 256 * 1024


def test_lines_of_many_values_are_read_with_pauses() -> None:
    crowded = line("a", text="a", body={"model": "m", "input": "a", "x": [[]] * 30_000})
    content = b"\n".join(crowded.replace(b'"custom_id":"a"', b'"custom_id":"%d"' % number) for number in range(10)) + b"\n"

    assert len(list(InputReader().feed(content))) == 10


def test_a_long_line_of_few_values_is_read_with_pauses() -> None:
    body = orjson.dumps({"model": "m", "input": ["\n" * 200_000] * 5})

    assert len(list(line_steps(long_line(body)))) >= 5


def test_lines_of_a_chunk_are_read_with_pauses() -> None:
    assert len(list(lines_of((line("a", text="a" * 100_000) + b"\n") * 10))) >= 3


def test_as_many_inputs_as_openai_allows() -> None:
    most = [line(str(number), text=["a"] * 2000) for number in range(25)]
    assert len(read(*most).chunks) == 25
    with pytest.raises(InvalidRequest, match=r"line 26: .* more than 50000 inputs"):
        read(*most, line("x"))


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        read()


def test_of_long_names_little_is_kept() -> None:
    """A caller may send 50,000 of them, of 512 characters each."""
    reader = InputReader()
    finish(reader.feed(b"\n".join(line(f"{number}".rjust(512, "é")) for number in range(20)) + b"\n"))
    assert max(map(getsizeof, reader._seen)) < 100
    with pytest.raises(InvalidRequest, match=r"^line 21: custom_id .* is that of an earlier line"):
        finish(reader.feed(line("7".rjust(512, "é")) + b"\n"))
