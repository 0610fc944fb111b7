"""`mkdocs build --strict` makes the site, and refuses a link that leads nowhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from control_plane.settings import PROJECT_ROOT

LONG_S = 250.0


@dataclass(frozen=True)
class Built:
    """The site of the documents as they are, but for one link that leads nowhere."""

    folder: Path
    status: int
    warnings: list[str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    project, folder = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    for each in PROJECT_ROOT.iterdir():
        if not each.name.startswith(".") and each.name != "docs":
            (project / each.name).symlink_to(each)
    shutil.copytree(PROJECT_ROOT / "docs", project / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    with (project / "docs" / "index.md").open("a") as page:
        page.write("\n[nowhere](concepts/nowhere.md)\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=LONG_S)
    return Built(folder, done.returncode, [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))])


@pytest.fixture
def site(built: Built) -> Path:
    return built.folder


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


def test_a_link_that_leads_nowhere_is_refused_and_nothing_else(built: Built) -> None:
    assert built.status != 0
    assert ["concepts/nowhere.md" in line for line in built.warnings] == [True], built.warnings
