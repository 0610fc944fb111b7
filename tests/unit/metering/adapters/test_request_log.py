from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError
from control_plane.core.infer_call import Frontend, Outcome
from control_plane.metering.adapters import request_log
from control_plane.metering.adapters.request_log import RequestLogFile
from control_plane.metering.domain.usage import UsageEvent


def event(number: int) -> UsageEvent:
    return UsageEvent(1.5, "t", "k", "m", "m", Frontend.HTTP, Outcome.ANSWERED, 0.01, number, 1, 1.0)


@contextmanager
def logging_to(path: Path) -> Iterator[RequestLogFile]:
    log = RequestLogFile(path)
    try:
        yield log
    finally:
        log.close()


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["rows"] for line in path.read_text().splitlines()]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_every_event_is_a_line_in_order(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with logging_to(path) as log:
        for number in range(2500):
            log.write(event(number))
    assert numbers(path) == list(range(2500))
    assert log.dropped == 0


def test_lines_come_without_waiting_for_the_end(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with logging_to(path) as log:
        log.write(event(1))
        wait_until(lambda: path.read_text() != "")
        assert numbers(path) == [1]


def test_a_file_that_is_there_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    for number in (1, 2):
        with logging_to(path) as log:
            log.write(event(number))
    assert numbers(path) == [1, 2]


@pytest.mark.parametrize("move", [lambda path: path.rename(path.with_suffix(".1")), lambda path: path.unlink()], ids=["renamed", "removed"])
def test_a_file_that_was_moved_away_is_opened_anew(tmp_path: Path, move: Callable[[Path], object]) -> None:
    path = tmp_path / "requests.jsonl"
    with logging_to(path) as log:
        log.write(event(1))
        wait_until(lambda: path.read_text() != "")
        move(path)
        log.write(event(2))
        wait_until(lambda: path.exists() and path.read_text() != "")
        assert numbers(path) == [2]
        left = tmp_path / "requests.1"
        assert not left.exists() or numbers(left) == [1]


def test_two_processes_can_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with logging_to(path) as one, logging_to(path) as other:
        for number in range(500):
            one.write(event(number))
            other.write(event(1000 + number))
    assert sorted(numbers(path)) == [*range(500), *range(1000, 1500)]


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with logging_to(path):
        assert path.stat().st_mode & 0o777 == 0o600


def test_one_that_cannot_be_opened_is_a_startup_error(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"--request-log .*: Is a directory"):
        RequestLogFile(tmp_path)


def test_what_the_disk_does_not_take_is_counted_and_told_once_and_later_lines_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "logs" / "requests.jsonl"
    path.parent.mkdir()
    with logging_to(path) as log, caplog.at_level(logging.ERROR):
        path.parent.rename(tmp_path / "elsewhere")
        for lost in (1, 2):
            log.write(event(lost))
            wait_until(lambda lost=lost: log.dropped == lost)  # type: ignore[misc]
        path.parent.mkdir()
        log.write(event(3))
        wait_until(lambda: path.exists() and path.read_text() != "")
    assert numbers(path) == [3]
    assert [str(path) in message for message in caplog.messages] == [True]


def test_a_disk_that_hangs_holds_up_nobody_and_what_is_too_much_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_MAX_WAITING", 1000)
    monkeypatch.setattr(request_log, "_CLOSE_TIMEOUT_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = RequestLogFile(pipe)
    written = 0
    while log.dropped == 0:  # a pipe that nobody empties takes 64 KiB
        log.write(event(1))
        written += 1
    log.close()
    assert written > 1000
    while log._thread.is_alive():  # let it end
        try:
            os.read(reader, 1 << 20)
        except BlockingIOError:
            time.sleep(0.01)
    os.close(reader)


def test_closing_twice_is_once(tmp_path: Path) -> None:
    log = RequestLogFile(tmp_path / "requests.jsonl")
    log.close()
    log.close()
