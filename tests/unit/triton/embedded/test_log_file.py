from __future__ import annotations

from pathlib import Path

from control_plane.triton.embedded.log_file import open_log


def life(path: Path, text: bytes) -> str:
    """Return the tail of the log of a Triton that wrote this text."""
    log, output = open_log(path)
    with output:
        output.write(text)
    return log.tail()


def test_the_tail_is_the_last_fifteen_lines(tmp_path: Path) -> None:
    text = b"".join(b"line %d\n" % number for number in range(100))
    assert life(tmp_path / "log", text).splitlines() == [f"line {number}" for number in range(85, 100)]


def test_the_tail_is_at_most_four_kib(tmp_path: Path) -> None:
    tail = life(tmp_path / "log", b"x" * 10_000 + b"end")
    assert len(tail) == 4096
    assert tail.endswith("end")


def test_the_tail_holds_nothing_of_an_earlier_life(tmp_path: Path) -> None:
    assert life(tmp_path / "log", b"earlier\n") == "earlier"
    assert life(tmp_path / "log", b"later\n") == "later"
    assert life(tmp_path / "log", b"") == ""
    assert (tmp_path / "log").read_bytes() == b"earlier\nlater\n"


def test_bytes_that_are_no_text_do_not_hide_the_rest(tmp_path: Path) -> None:
    assert life(tmp_path / "log", b"\xff\xfe broken\nfine\n").endswith("broken\nfine")


def test_a_log_beyond_ten_mib_is_rotated_at_the_next_start_once(tmp_path: Path) -> None:
    path = tmp_path / "state" / "triton.log"
    life(path, b"x" * 10 * 2**20)
    assert life(path, b"more\n").endswith("more")
    assert life(path, b"after\n") == "after"
    assert path.read_bytes() == b"after\n"
    assert path.with_name("triton.log.1").stat().st_size == 10 * 2**20 + 5


def test_a_log_that_was_removed_is_no_error(tmp_path: Path) -> None:
    log, output = open_log(tmp_path / "log")
    output.close()
    (tmp_path / "log").unlink()
    assert log.tail() == "(unreadable: No such file or directory)"


class TestSince:
    def test_it_is_what_was_written_from_there_on(self, tmp_path: Path) -> None:
        log, output = open_log(tmp_path / "log")
        with output:
            output.write(b"before\n")
            output.flush()
            position = log.end()
            output.write(b"after\n")
        assert log.since(position) == b"after\n"
        assert log.since(log.end()) == b""

    def test_of_much_it_is_the_end(self, tmp_path: Path) -> None:
        log, output = open_log(tmp_path / "log")
        with output:
            output.write(b"x" * 2**20 + b"end")
        found = log.since(0)
        assert len(found) == 256 * 1024
        assert found.endswith(b"xend")

    def test_of_a_file_that_has_been_cut_it_is_all_that_is_there(self, tmp_path: Path) -> None:
        log, output = open_log(tmp_path / "log")
        with output:
            output.write(b"x" * 1000)
        position = log.end()
        (tmp_path / "log").write_bytes(b"anew\n")
        assert log.since(position) == b"anew\n"
        assert log.tail() == "anew"

    def test_of_a_file_that_is_gone_it_is_nothing(self, tmp_path: Path) -> None:
        log, output = open_log(tmp_path / "log")
        output.close()
        (tmp_path / "log").unlink()
        assert log.since(log.end()) == b""
