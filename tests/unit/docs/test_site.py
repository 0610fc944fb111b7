"""`mkdocs build --strict` makes the site, and refuses a link that leads nowhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from control_plane.settings import PROJECT_ROOT

LONG_S = 250.0


def build(project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=LONG_S)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(PROJECT_ROOT, folder)
    assert built.returncode == 0, built.stderr  # strict: warnings are errors
    return folder


@pytest.mark.parametrize(
    ("page", "text"),
    [
        pytest.param("index.html", 'class="mermaid"', id="a diagram"),
        pytest.param("reference/settings.html", "TIDEGATE_HTTP_PORT", id="a page that is generated"),
        pytest.param("repository/perf/index.html", "What was measured", id="a page outside docs"),
        pytest.param("performance/index.html", "../repository/perf/results/gateway.svg", id="a picture outside docs"),
        pytest.param("decisions/cache.html", "../repository/perf/results/cache-hits.json", id="a result that is quoted"),
    ],
)
def test_the_site_has(site: Path, page: str, text: str) -> None:
    assert text in (site / page).read_text()
    assert (site / "repository" / "perf" / "results" / "gateway.svg").is_file()


def test_no_program_is_published(site: Path) -> None:
    assert [path.name for path in site.rglob("*.py") if "repository" not in path.parts] == []


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for each in PROJECT_ROOT.iterdir():
        if not each.name.startswith(".") and each.name != "docs":
            (project / each.name).symlink_to(each)
    shutil.copytree(PROJECT_ROOT / "docs", project / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    with (project / "docs" / "index.md").open("a") as page:
        page.write("\n[nowhere](concepts/nowhere.md)\n")
    built = build(project, tmp_path / "site")
    assert built.returncode != 0
    assert "concepts/nowhere.md" in built.stderr
