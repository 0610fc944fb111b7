"""What drills ask their models, and read of the answers."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from perf.chaos import models


def test_a_request_says_what_the_model_is_to_do_over_either_protocol() -> None:
    (tensor,) = json.loads(models.http_body(7.0, 0.5, 100.0))["inputs"]
    assert tensor["data"] == [7.0, 0.5, 100.0]
    message = service_pb2.ModelInferRequest.FromString(models.grpc_message("m", 7.0, 0.5, 100.0))
    assert struct.unpack("<3f", message.raw_input_contents[0]) == (7.0, 0.5, 100.0)


def test_an_answer_has_the_number() -> None:
    assert models.http_number(b'{"outputs":[{"name":"Y","data":[7.0]}]}') == 7.0
    answer = service_pb2.ModelInferResponse(raw_output_contents=[struct.pack("<f", 7.0)])
    assert models.grpc_number(answer.SerializeToString()) == 7.0


def test_a_text_has_its_number_in_every_piece() -> None:
    whole = models.written(7.0)
    assert models.written_number(whole) == 7.0
    assert len(whole.split()) == models.PIECES
    for text in (whole[:-1], whole + "7.8 ", "", whole.replace("7.3", "8.3")):
        with pytest.raises(ValueError):
            models.written_number(text)
    answer = json.dumps({"choices": [{"message": {"content": whole}}]}).encode()
    assert models.chat_number(answer) == 7.0


def test_a_message_of_a_stream_has_a_piece_or_an_error() -> None:
    number = service_pb2.ModelInferResponse(raw_output_contents=[struct.pack("<f", 7.25)])
    piece = service_pb2.ModelInferResponse(raw_output_contents=[struct.pack("<I", 4) + b"7.0 "])
    last = service_pb2.ModelStreamInferResponse(infer_response=service_pb2.ModelInferResponse())
    failed = service_pb2.ModelStreamInferResponse(error_message="died").SerializeToString()
    assert models.streamed_number(service_pb2.ModelStreamInferResponse(infer_response=number).SerializeToString()) == ("7.25 ", "")
    assert models.streamed_text(service_pb2.ModelStreamInferResponse(infer_response=piece).SerializeToString()) == ("7.0 ", "")
    assert models.streamed_text(last.SerializeToString()) == ("", "")
    assert models.streamed_number(failed) == models.streamed_text(failed) == ("", "died")


def test_only_one_model_may_not_be_repeated_and_one_has_a_file_that_is_cut(tmp_path: Path) -> None:
    root = models.write(tmp_path, (models.REPEATABLE_MODEL, models.ONCE_MODEL, models.CORRUPT))
    repeats = {folder.name for folder in root.iterdir() if "response_cache" in (folder / "config.pbtxt").read_text()}
    assert repeats == {models.REPEATABLE_MODEL, models.CORRUPT}
    assert (root / models.CORRUPT / "1" / "model.onnx").stat().st_size < 20
