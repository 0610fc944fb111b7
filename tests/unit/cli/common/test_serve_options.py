from __future__ import annotations

from typing import Annotated, get_args, get_origin

import pytest
import typer
from typer.models import OptionInfo
from typer.testing import CliRunner

from control_plane.cli.common.serve_options import serve_signature
from control_plane.settings import fields_of_settings, load_settings

OPTIONS: dict[str, OptionInfo] = {
    name: get_args(parameter.annotation)[1]
    for name, parameter in serve_signature().parameters.items()
    if get_origin(parameter.annotation) is Annotated
}


def given(*arguments: str) -> dict[str, object]:
    """What `serve` would get of these arguments."""
    found: dict[str, object] = {}
    app = typer.Typer()

    def command(**options: object) -> None:
        found.update(options)

    command.__signature__ = serve_signature()  # type: ignore[attr-defined]
    app.command()(command)
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return {name: value for name, value in found.items() if value is not None}


def test_every_option_is_a_setting() -> None:
    assert set(OPTIONS) <= set(fields_of_settings())
    assert len(OPTIONS) > 40


@pytest.mark.parametrize("name", OPTIONS)
def test_the_help_of_an_option_is_how_its_setting_begins(name: str) -> None:
    described = " ".join((fields_of_settings()[name].description or "").split()).replace("`", "").replace("[", "\\[")
    said = (OPTIONS[name].help or "").partition(" Repeatable.")[0].rpartition(" \\[")
    assert described.startswith(said[0] or said[2])


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        pytest.param("http_port", "[8000]", id="number"),
        pytest.param("host", "[127.0.0.1]", id="text"),
        pytest.param("authentication", "[no]", id="switch"),
        pytest.param("cache_bytes", "[256MiB]", id="bytes"),
        pytest.param("state_dir", "[.state]", id="a path of the project's"),
        pytest.param("model_repository", "Repeatable. [model_repository, ensembles]", id="several"),
        pytest.param("tls_key", "without a passphrase.", id="none"),
    ],
)
def test_the_default_is_shown_as_a_user_would_write_it(name: str, shown: str) -> None:
    assert (OPTIONS[name].help or "").replace("\\[", "[").endswith(shown)


def test_what_is_given_reaches_the_settings_and_what_is_not_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_HTTP_PORT", "7")
    options = given("--grpc-port", "8", "--authentication", "--no-shared-memory", "--memory-budget", "2GiB")
    assert options == {"grpc_port": "8", "authentication": True, "allow_shared_memory": False, "memory_budget": "2GiB"}
    settings = load_settings(options)
    assert (settings.gateway.http_port, settings.gateway.grpc_port) == (7, 8)
    assert settings.fleet.memory_budget == 2 << 30


def test_a_repeated_option_may_have_commas_in_its_values() -> None:
    options = given("--model-repository", "/a,b", "--model-repository", "/c")
    assert list(map(str, load_settings(options).triton.model_repository)) == ["/a,b", "/c"]
