"""The reference pages are those that the code makes."""

from __future__ import annotations

import pytest

from control_plane.core.errors import ErrorCode
from control_plane.settings import ENV_PREFIX, effective, load_settings
from docs.generate import REFERENCE, pages

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_what_is_committed_is_what_the_code_makes(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name], "run `make docs`"


def test_every_setting_is_there_with_its_meaning() -> None:
    for name in effective(load_settings()):
        _, heading, rest = PAGES["settings.md"].partition(f"### `{ENV_PREFIX}{name.upper()}`\n\nDefault: ")
        assert heading, name
        assert len(rest.partition("###")[0].split("\n\n")) >= 2, name


def test_no_secret_or_path_of_a_machine_is_in_it() -> None:
    assert "/root/" not in "".join(PAGES.values())
    assert str(REFERENCE.parents[1]) not in "".join(PAGES.values())


@pytest.mark.parametrize(
    ("page", "text"),
    [
        pytest.param("cli.md", "## `tidegate serve`", id="a command"),
        pytest.param("cli.md", "### `tidegate models load`", id="a command of a group"),
        pytest.param("cli.md", "* `--http-port NUMBER`: ", id="an option"),
        pytest.param("cli.md", "* `--p99-ms <float range>` (default `10.0`): ", id="an option with a default"),
        pytest.param(
            "settings.md", "### `TIDEGATE_WORKERS`\n\nDefault: `1`; at least `1`; at most `256`; option `--workers`.", id="limits"
        ),
        pytest.param("settings.md", "(128 MiB)", id="a size"),
        pytest.param("metrics.md", "* `tidegate_requests_total`, counter: ", id="a counter"),
        pytest.param("metrics.md", "* `tidegate_fleet_load_duration_seconds`, histogram: ", id="a fleet's"),
        pytest.param("metrics.md", "* `tidegate_batching_rows_total`, counter: ", id="a backend's"),
        pytest.param("admin-api.md", "### `PATCH /tenants/{name}`", id="a call"),
        pytest.param("admin-api.md", "* scope: `viewer` or `repository`", id="a scope"),
        pytest.param("admin-api.md", "* scope: none", id="no scope"),
    ],
)
def test_it_tells(page: str, text: str) -> None:
    assert text in PAGES[page]


def test_metrics_can_be_read_where_lines_are_not_wrapped() -> None:
    assert [line for line in PAGES["metrics.md"].splitlines() if len(line) > 110] == []


def test_every_error_has_its_row() -> None:
    assert all(f"| `{code.value}` | " in PAGES["errors.md"] for code in ErrorCode)
