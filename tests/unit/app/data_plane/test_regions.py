from __future__ import annotations

from pathlib import Path

import pytest

from control_plane.app.data_plane.regions import make_regions
from control_plane.core.errors import StartupError
from control_plane.settings import load_settings

LISTED = "- {name: there, url: 'http://127.0.0.1:1'}\n- {name: here, url: 'http://127.0.0.1:2'}"


def made(tmp_path: Path, text: str = LISTED, **settings: object) -> list[str] | None:
    (tmp_path / "regions.yaml").write_text(text)
    regions = make_regions(load_settings(settings))
    return None if regions is None else [each.region.name for each in regions.standings]


def test_without_a_region_there_are_none(tmp_path: Path) -> None:
    assert made(tmp_path) is None


def test_a_region_of_its_own_is_enough_to_serve_others(tmp_path: Path) -> None:
    assert made(tmp_path, region="here") == []


def test_the_others_are_known(tmp_path: Path) -> None:
    assert made(tmp_path, region="here", regions_file=tmp_path / "regions.yaml") == ["there"]


def test_others_without_a_name_for_this_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="--regions-file needs --region"):
        made(tmp_path, regions_file=tmp_path / "regions.yaml")


def test_authorities_that_cannot_be_read_are_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"--regions-file: region us: ca /no/ca\.pem"):
        made(tmp_path, "- {name: us, url: 'https://us.example', ca: /no/ca.pem}", region="here", regions_file=tmp_path / "regions.yaml")
