"""Discovery of the tidegate and the store that a command talks to, from few or no options."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.cli.common.options import endpoint, locate_settings, locate_store_settings, require_state
from control_plane.core.errors import InvalidRequest
from control_plane.host.state_dir import StateDir
from control_plane.settings import load_settings
from control_plane.storage.store_record import write_store_record

ENDPOINTS = {"http": "http://127.0.0.1:1", "http_socket": "unix:/run/h.sock", "admin": "http://127.0.0.1:2"}


class TestEndpoint:
    def test_what_is_given_counts(self, tmp_path: Path) -> None:
        assert endpoint("admin", tmp_path, "http://elsewhere:1/") == "http://elsewhere:1"

    @pytest.mark.parametrize("how", ["option", "variable"])
    def test_it_is_found_through_the_state_folder_a_socket_first(self, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIDEGATE_STATE_DIR", str(tmp_path) if how == "variable" else "/nowhere")
        with StateDir(tmp_path) as state:
            state.write_endpoints(ENDPOINTS)
            told = None if how == "variable" else tmp_path
            assert endpoint("admin", told, None) == "http://127.0.0.1:2"
            assert endpoint("http", told, None) == "unix:/run/h.sock"

    @pytest.mark.parametrize("scheme", ["http", "https"])
    def test_of_grpc_the_scheme_is_that_of_http(self, tmp_path: Path, scheme: str) -> None:
        with StateDir(tmp_path) as state:
            state.write_endpoints({"http": f"{scheme}://127.0.0.1:1", "grpc": "[::1]:2"})
            assert endpoint("grpc", tmp_path, None) == f"{scheme}://[::1]:2"
            for path in ("/run/g.sock", "g.sock"):
                state.write_endpoints({"http": f"{scheme}://127.0.0.1:1", "grpc": "[::1]:2", "grpc_socket": f"unix:{path}"})
                assert endpoint("grpc", tmp_path, None) == f"unix:{path}"

    def test_where_none_runs_that_is_told_and_the_port_that_was_named_asked(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TIDEGATE_ADMIN_PORT", "8123")
        assert endpoint("admin", tmp_path, None) == "http://127.0.0.1:8123"
        assert capsys.readouterr().err == f"you run no tidegate in {tmp_path}; asking http://127.0.0.1:8123\n"

    @pytest.mark.parametrize("name", ["admin", "http"])
    def test_where_none_runs_in_the_folder_that_was_named_no_other_is_asked(
        self, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would be changed instead, and shown the key."""
        for port in ("TIDEGATE_ADMIN_PORT", "TIDEGATE_HTTP_PORT"):
            monkeypatch.delenv(port, raising=False)
        with pytest.raises(InvalidRequest, match=f"you run no tidegate in {tmp_path}; start it"):
            endpoint(name, tmp_path, None)


class TestWhichOneIsMeant:
    """Nothing names a folder, and in the usual one none runs."""

    @pytest.fixture(autouse=True)
    def _elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_the_only_one_that_this_user_runs(self) -> None:
        assert locate_settings(None, running=lambda: [Path("/srv/a")]).process.state_dir == Path("/srv/a")

    def test_of_several_one_has_to_be_named(self) -> None:
        both = [Path("/srv/a"), Path("/srv/b")]
        with pytest.raises(InvalidRequest) as told:
            locate_settings(None, running=lambda: both)
        assert str(told.value) == "you run 2 tidegates; say which with --state-dir or TIDEGATE_STATE_DIR: /srv/a, /srv/b"
        assert locate_settings(Path("/srv/b"), running=lambda: both).process.state_dir == Path("/srv/b")

    def test_a_node_is_not_asked_where_a_gateway_runs(self, tmp_path: Path) -> None:
        with StateDir(tmp_path / "node") as node, StateDir(tmp_path / "gateway") as gateway:
            node.write_endpoints({"node": "127.0.0.5:8500"})
            gateway.write_endpoints(ENDPOINTS)
            found = locate_settings(None, running=lambda: [gateway.path, node.path])
        assert found.process.state_dir == gateway.path

    def test_with_a_redis_no_folder_matters(self) -> None:
        settings = locate_settings(None, "redis://h", running=lambda: [Path("/srv/a"), Path("/srv/b")])
        assert settings.process.state_dir == load_settings().process.state_dir

    def test_where_none_runs_it_is_the_usual_folder(self) -> None:
        assert locate_settings(None, running=list).process.state_dir == load_settings().process.state_dir

    def test_one_in_the_usual_folder_counts_before_others(self) -> None:
        with StateDir(load_settings().process.state_dir) as state:
            state.write_endpoints(ENDPOINTS)
            assert locate_settings(None, running=lambda: [Path("/srv/a")]).process.state_dir == state.path


class TestStores:
    def test_a_folders_own_files_are_the_usual_case(self, tmp_path: Path) -> None:
        assert locate_store_settings(tmp_path, None).state.state_url is None
        write_store_record(tmp_path, None)
        assert locate_store_settings(tmp_path, None).state.state_url is None

    def test_the_redis_of_the_tidegate_there_is_found(self, tmp_path: Path) -> None:
        write_store_record(tmp_path, SecretStr("redis://h:1/2"))
        found = locate_store_settings(tmp_path, None).state.state_url
        assert found is not None
        assert found.get_secret_value() == "redis://h:1/2"

    @pytest.mark.parametrize("url", ["redis://:secret@h:1/2", "rediss://h:1/2?ssl_ca_certs=x"])
    def test_one_that_takes_more_is_asked_for(self, tmp_path: Path, url: str) -> None:
        write_store_record(tmp_path, SecretStr(url))
        with pytest.raises(InvalidRequest, match=r"keeps its state in rediss?://h:1/2, .*set the same TIDEGATE_STATE_URL"):
            locate_store_settings(tmp_path, None)
        found = locate_store_settings(tmp_path, url).state.state_url
        assert found is not None
        assert found.get_secret_value() == url

    def test_another_than_that_of_the_one_that_runs_is_told(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with StateDir(tmp_path) as state:
            write_store_record(tmp_path, None)
            state.write_endpoints(ENDPOINTS)
            locate_store_settings(tmp_path, "redis://h")
            assert capsys.readouterr().err == f"the tidegate that runs in {tmp_path} keeps its state elsewhere: in its own SQLite files\n"
            write_store_record(tmp_path, SecretStr("redis://h:6379/0"))
            locate_store_settings(tmp_path, "redis://:secret@h")
            assert capsys.readouterr().err == ""

    def test_where_there_is_no_state_that_is_told(self, tmp_path: Path) -> None:
        settings = locate_settings(tmp_path)
        with pytest.raises(InvalidRequest, match=r"no tidegate has stored any state in .*say which with --state-dir or TIDEGATE_STATE_DIR"):
            require_state(settings)
        (tmp_path / "state.sqlite").touch()
        require_state(settings)
