"""Computing a batch: who has left is not computed, and what was done is counted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from python_backends.batching.batch_queue import Batch, Waiter
from python_backends.batching.counts import Tally
from python_backends.runtime.errors import BackendError, RequestCancelled, RequestError, RequestExpired
from python_backends.runtime.execution import Answer, Array, InferenceRequest, Tensors
from python_backends.text_encoder.encoder import CANCELLATION_CHECK_AFTER_S, Encoder, EncoderRequest, to_waiter


@dataclass
class Model:
    """SUM of the tokens of each row; a token of -1 is refused."""

    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def run(self, names: Sequence[str], inputs: Tensors) -> list[Array]:
        self.shapes.append(inputs["IDS"].shape)
        if (inputs["IDS"] < 0).any():
            raise RequestError("no such token")
        return [inputs["IDS"].sum(axis=1) for _ in names]


@dataclass
class Client:
    """Fake client: whether it has left, and how often that was checked."""

    has_left: bool = False
    asked: int = 0

    def is_cancelled(self) -> bool:
        self.asked += 1
        return self.has_left


def waiter(ids: list[list[int]], client: Client, *, waited_s: float = 0.0, time_left_s: float = inf) -> Waiter[EncoderRequest]:
    plain = InferenceRequest({"IDS": np.array(ids)}, ("SUM",), client.is_cancelled, time_left_s=time_left_s)
    request = EncoderRequest(plain)
    return to_waiter(request, time.monotonic() - waited_s)


def sums(answer: Answer) -> list[int]:
    assert not isinstance(answer, BackendError), answer
    return answer["SUM"].tolist()  # type: ignore[no-any-return]


LONG_S = 10 * CANCELLATION_CHECK_AFTER_S


def test_a_request_waits_as_rows_of_a_length() -> None:
    waiting = waiter([[1, 2, 3], [4, 5, 6]], Client())

    assert (waiting.rows, waiting.length) == (2, 3)


def test_of_those_who_waited_long_only_who_is_still_there_is_computed() -> None:
    model, tally = Model(), Tally()
    batch = Batch([waiter([[1] * 9], Client(has_left=True), waited_s=LONG_S), waiter([[1, 2]], Client(), waited_s=LONG_S)], 1.0)

    left, here = Encoder(model.run, ["SUM"], tally).compute(batch)

    assert isinstance(left, RequestCancelled)
    assert sums(here) == [3]
    assert model.shapes == [(1, 2)]
    assert tally.take()["padded_tokens_total"] == 2


def test_who_has_just_come_is_not_asked() -> None:
    client = Client(has_left=True)

    (answer,) = Encoder(Model().run, ["SUM"], Tally()).compute(Batch([waiter([[1, 2]], client)], 1.0))

    assert sums(answer) == [3]
    assert client.asked == 0


def test_what_has_expired_is_not_computed_nor_asked_whether_it_was_cancelled() -> None:
    model, tally, client = Model(), Tally(), Client()
    batch = Batch([waiter([[1] * 9], client, waited_s=LONG_S, time_left_s=LONG_S / 2), waiter([[1, 2]], Client(), time_left_s=1e3)], 1.0)

    expired, here = Encoder(model.run, ["SUM"], tally).compute(batch)

    assert isinstance(expired, RequestExpired)
    assert str(expired) == "Request timeout expired"
    assert sums(here) == [3]
    assert (model.shapes, client.asked) == ([(1, 2)], 0)
    counted = tally.take()
    assert (counted["expired_total"], counted["cancelled_total"], counted["requests_total"]) == (1, 0, 1)


def test_where_all_have_left_nothing_runs_and_only_that_is_counted() -> None:
    model, tally = Model(), Tally()

    (answer,) = Encoder(model.run, ["SUM"], tally).compute(Batch([waiter([[1]], Client(has_left=True), waited_s=LONG_S)], 1.0))

    assert isinstance(answer, RequestCancelled)
    assert model.shapes == []
    assert {name: count for name, count in tally.take().items() if count} == {"cancelled_total": 1}


def test_a_request_that_fails_its_batch_is_found() -> None:
    batch = Batch([waiter([[1, 2]], Client()), waiter([[-1]], Client()), waiter([[3]], Client())], 1.0)

    first, wrong, last = Encoder(Model().run, ["SUM"], Tally()).compute(batch)

    assert [sums(first), sums(last)] == [[3], [3]]
    assert str(wrong) == "no such token"


def test_what_a_batch_did_is_counted() -> None:
    tally = Tally()
    batch = Batch([waiter([[1, 2, 3], [4, 5, 6]], Client(), waited_s=0.01), waiter([[7]], Client(), waited_s=0.03)], 1.0)

    Encoder(Model().run, ["SUM"], tally).compute(batch)

    counted = tally.take()
    assert counted.pop("queue_seconds_total") >= 0.04
    assert counted.pop("compute_seconds_total") > 0
    assert (counted.pop("cancelled_total"), counted.pop("expired_total")) == (0, 0)
    assert counted == {"batches_total": 1, "requests_total": 2, "rows_total": 3, "useful_tokens_total": 7, "padded_tokens_total": 9}


def test_an_answer_goes_where_it_was_said_to_go() -> None:
    sent: list[Answer] = []
    request = waiter([[1]], Client()).request
    request.send = sent.append

    request.answer({"SUM": np.array([1])})

    assert [sums(answer) for answer in sent] == [[1]]
