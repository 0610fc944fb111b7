from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.endpoints import ListedServer, TritonEndpoints
from control_plane.core.errors import StartupError
from control_plane.fleet.adapters.servers_file import ServersFile

ONE = "- url: http://h:9000\n"
TWO = "- url: http://h:9000\n- url: http://h:9010\n"


def listed(folder: Path, text: str) -> list[ListedServer]:
    path = folder / "servers.yaml"
    path.write_text(text)
    return ServersFile(path).read()


def test_an_entry_is_its_url_and_what_it_says_besides(tmp_path: Path) -> None:
    text = """
    - url: http://10.0.0.5
    - {url: "http://[::1]:9000?grpc_port=7&metrics_port=8", name: big-1, pool: long, labels: {zone: a}, memory_budget: 8GiB}
    """
    assert listed(tmp_path, text) == [
        ListedServer("10.0.0.5:8000", TritonEndpoints("10.0.0.5", 8000, 8001, 8002)),
        ListedServer("big-1", TritonEndpoints("::1", 9000, 7, 8), "long", {"zone": "a"}, 8 * 2**30),
    ]


def test_json_is_yaml_as_well(tmp_path: Path) -> None:
    assert [each.name for each in listed(tmp_path, '[{"url": "http://h:1"}, {"url": "http://h:11", "name": "b"}]')] == ["h:1", "b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", "should be a list of at least one server, such as `- url: http://10.0.0.5:8000`", id="empty"),
        pytest.param("[]", "at least one server", id="none"),
        pytest.param("url: http://h:1", "should be a list", id="one without its dash"),
        pytest.param("- http://h:1", "entry 1 should be a mapping, such as `- url:", id="a bare url"),
        pytest.param("- name: a", "entry 1: url is missing", id="no url"),
        pytest.param("- url: 7", "entry 1: url should be a text; put it in quotes, got 7", id="a number for a url"),
        pytest.param(
            ONE + "- url: ftp://h",
            "entry 2: url 'ftp://h': expected http[s]://HOST:HTTP_PORT[?grpc_port=N&grpc_scheme=grpc|grpcs&metrics_port=N&node=HOST:PORT]",
            id="no http",
        ),
        pytest.param("- url: http://h:1?pool=a", "expected http[s]://HOST", id="a pool in the url"),
        pytest.param(
            "- {url: 'http://h:1', colour: red}",
            "entry 1: colour is not known; expected url, name, pool, labels, memory_budget, got 'red'",
            id="an unknown field",
        ),
        pytest.param("- {url: 'http://h:1', name: a b}", "entry 1: name should be letters, digits", id="a name with a space"),
        pytest.param("- {url: 'http://h:1', pool: a/b}", "entry 1: pool should be letters", id="a pool with a slash"),
        pytest.param("- {url: 'http://h:1', labels: {zone: 1}}", "entry 1: labels: zone should be a text; put it in quotes", id="a label"),
        pytest.param("- {url: 'http://h:1', labels: {1: a}}", "entry 1: labels: 1 should be a text", id="a label's name"),
        pytest.param("- {url: 'http://h:1', labels: a}", "entry 1: labels must be a valid dictionary", id="labels that are none"),
        pytest.param("- {url: 'http://h:1', memory_budget: 8Gi}", "such as 2GiB or 500MB, got '8Gi'", id="a budget"),
        pytest.param("- {url: 'http://h:1', memory_budget: 0}", "memory_budget", id="no memory"),
        pytest.param(ONE + ONE, "entries 1 and 2 have the same name, h:9000", id="one twice"),
        pytest.param(
            TWO + "- {url: 'http://h:9000', name: b}", "entries 1 and 3 have the same host and grpc_port, h:9001", id="a Triton twice"
        ),
        pytest.param("- {url: 'http://h:1', name: a}\n- {url: 'http://h:9', name: a}", "same name, a", id="a name twice"),
        pytest.param("- url: [", "is no YAML: while parsing a flow", id="cut short"),
        pytest.param("- url: !!python/object/apply:os.system ['true']", "is no YAML: could not determine a constructor", id="code"),
        pytest.param("- \x00", "is no YAML", id="binary"),
        pytest.param("[" * 5000, "is no YAML", id="nested deep"),
        pytest.param(ONE + "  labels: {a: !!bool foo}", "a value is not what its tag or its form says", id="a truth that is none"),
        pytest.param(ONE + "  name: !!timestamp foo", "a value is not what its tag", id="a tagged date that is none"),
        pytest.param(ONE + "  name: 2001-13-01", "a value is not what its tag or its form says", id="a date that there is not"),
        pytest.param(ONE + '  name: !!int ""', "a value is not what its tag", id="a number that is none"),
        pytest.param(ONE + "  name: 1" + ":00" * 200 + ".0", "a value is not what its tag", id="a number that is too large"),
        pytest.param(ONE + "  name: 1" + "0" * 5000, "a value is not what its tag", id="a number that is too long"),
        pytest.param(ONE + "  memory_budget: 100EiB", "memory_budget must be less than or equal to 1152921504606846976", id="an end"),
        pytest.param(ONE + "  memory_budget: 1" + "0" * 400, "entry 1: memory_budget must be less", id="no end of memory"),
        pytest.param(ONE + "  memory_budget: 1.0e+400", "such as 2GiB", id="infinite memory"),
        pytest.param(ONE + r'  labels: {a: "\ud800"}', r"entry 1: labels: a should be a text, got '\ud800'", id="no text"),
        pytest.param(
            ONE + r'  labels: {"\ud800": a}', "entry 1: labels: \ufffd\ufffd\ufffd should be a text", id="a label's name that is no text"
        ),
        pytest.param(r'- url: "http://\ud800"', r"expected http[s]://HOST", id="a host that is no text"),
        pytest.param("# " + "x" * 2**20, "is larger than 1048576 bytes", id="huge"),
    ],
)
def test_what_is_wrong_is_said_with_what_would_be_right(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(StartupError) as told:
        listed(tmp_path, text)
    assert str(told.value).startswith(f"--servers-file {tmp_path}/servers.yaml: ")
    assert said in str(told.value)
    assert len(str(told.value)) < 1000


def test_all_that_is_wrong_is_said_at_once_and_no_password(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"entry 1: name .*; entry 2: url is missing"):
        listed(tmp_path, "- {url: 'http://h:1', name: a b}\n- {}")
    with pytest.raises(StartupError, match=r"http://\.\.\.@h:1") as told:
        listed(tmp_path, "- url: http://me:s3cret@h:1")
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize("password", ["pw,QZ", "pw'QZ", "pw/QZ", "pw//QZ", "pw@QZ", "pw?QZ", "pw QZ", "QZ\u2100", "QZ" * 50])
@pytest.mark.parametrize(
    "text",
    [
        "- url: {}",
        "- {}",
        "- uri: {}",
        "- [{}]",
        "- {{labels: {{{}: {}}}}}",
        "- url: {}\n  url",
        "- url: !!bool {}",
        "- url: {} [ - ",
        "- {}: [",
        "- {}: a",
    ],
)
def test_nobody_is_shown_a_password_in_whatever_is_wrong(tmp_path: Path, password: str, text: str) -> None:
    url = json.dumps(f"http://me:{password}@h:1", ensure_ascii=False)
    with pytest.raises(StartupError) as told:
        listed(tmp_path, text.replace("{}", url).replace("{{", "{").replace("}}", "}"))
    assert not any(part in str(told.value) for part in ("pw", "QZ"))


@given(
    st.text("ab:!{}[]&*-_.,'\" \n0123456789TZ+<", max_size=40),
    st.sampled_from(["bool", "int", "float", "timestamp", "binary", "set", "omap", "null"]),
)
def test_whatever_is_tagged_is_a_list_or_is_said_to_be_wrong(tmp_path_factory: pytest.TempPathFactory, text: str, tag: str) -> None:
    with suppress(StartupError):
        listed(tmp_path_factory.getbasetemp(), f"- url: http://h:1\n  name: !!{tag} {text}")


@pytest.mark.parametrize("path", ["nonesuch.yaml", "."])
def test_one_that_cannot_be_read_is_said_to_be(tmp_path: Path, path: str) -> None:
    with pytest.raises(StartupError, match=r"--servers-file .*: cannot be read: .*; it should be a YAML list"):
        ServersFile(tmp_path / path).read()


class TestChanges:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "servers.yaml"
        path.write_text(ONE)
        return path

    @pytest.fixture
    def file(self, path: Path) -> ServersFile:
        file = ServersFile(path)
        file.read()
        return file

    def test_there_is_none_until_it_is_written_and_none_after_it_has_been_read(self, file: ServersFile, path: Path) -> None:
        assert [file.has_changed() for _ in range(3)] == [False] * 3
        path.write_text(TWO)
        assert [file.has_changed() for _ in range(3)] == [False, True, True]
        assert len(file.read()) == 2
        assert not file.has_changed()

    def test_what_is_still_being_written_is_left_alone(self, file: ServersFile, path: Path) -> None:
        for end in range(len(TWO)):
            path.write_text(TWO[:end])
            assert not file.has_changed()
        path.write_text(TWO)
        assert not file.has_changed()
        assert file.has_changed()
        assert len(file.read()) == 2

    def test_one_that_is_put_in_its_place_in_one_step_is_seen_even_with_equal_times_and_size(self, file: ServersFile, path: Path) -> None:
        other, was = path.with_name("other"), path.stat()
        other.write_text(ONE.replace("9000", "9001"))
        os.utime(other, ns=(was.st_atime_ns, was.st_mtime_ns))
        other.replace(path)
        assert [file.has_changed() for _ in range(2)] == [False, True]
        assert file.read()[0].name == "h:9001"

    def test_a_config_map_is_followed_through_its_links(self, tmp_path: Path) -> None:
        for version, text in (("v1", ONE), ("v2", TWO)):
            (tmp_path / version).mkdir()
            (tmp_path / version / "servers.yaml").write_text(text)
        (tmp_path / "..data").symlink_to("v1")
        (tmp_path / "servers.yaml").symlink_to("..data/servers.yaml")
        file = ServersFile(tmp_path / "servers.yaml")
        assert len(file.read()) == 1
        (tmp_path / "..data_tmp").symlink_to("v2")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        assert [file.has_changed() for _ in range(2)] == [False, True]
        assert len(file.read()) == 2

    def test_one_that_is_gone_is_told_of_once_and_seen_when_it_is_back(self, file: ServersFile, path: Path) -> None:
        path.unlink()
        assert [file.has_changed() for _ in range(2)] == [False, True]
        with pytest.raises(StartupError, match="No such file"):
            file.read()
        assert not file.has_changed()
        path.write_text(TWO)
        assert [file.has_changed() for _ in range(2)] == [False, True]
        assert len(file.read()) == 2

    def test_one_that_may_be_read_from_now_on_is_seen(self, file: ServersFile, path: Path) -> None:
        path.chmod(0o600)
        assert [file.has_changed() for _ in range(2)] == [False, True]

    def test_one_that_is_there_and_could_not_be_read_is_tried_again(self, file: ServersFile, path: Path) -> None:
        path.unlink()
        path.mkdir()
        assert [file.has_changed() for _ in range(2)] == [False, True]
        for _ in range(2):
            with pytest.raises(StartupError, match="Is a directory"):
                file.read()
            assert file.has_changed()
        path.rmdir()
        path.write_text(TWO)
        assert [file.has_changed() for _ in range(2)] == [False, True]
        assert len(file.read()) == 2
        assert not file.has_changed()

    def test_a_bad_one_is_told_of_once(self, file: ServersFile, path: Path) -> None:
        path.write_text("[]")
        assert [file.has_changed() for _ in range(2)] == [False, True]
        with pytest.raises(StartupError):
            file.read()
        assert not any(file.has_changed() for _ in range(3))
