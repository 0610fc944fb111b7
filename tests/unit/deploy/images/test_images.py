"""The Dockerfiles, as far as they can be tested where no image can be pulled or built."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from control_plane.settings import GatewaySettings
from dependencies.bill import bill, main
from dependencies.sections import LOCK, SECTIONS

PROJECT = LOCK.parent
IMAGES = PROJECT / "deploy" / "images"
DOCKERFILES = sorted(IMAGES.glob("*.Dockerfile"))
COMPOSE = yaml.safe_load((PROJECT / "deploy" / "compose.yaml").read_text())
BASE_IMAGE = os.environ.get("LOCAL_BASE_IMAGE", "")
every_dockerfile = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)


def instructions(path: Path) -> list[tuple[str, str]]:
    """(word, rest) of each instruction, with continued lines joined and comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2]) for line in joined.splitlines() if line.strip()]


def copied(path: Path) -> Iterator[str]:
    """What is copied from the context."""
    for word, rest in instructions(path):
        if word == "COPY" and not rest.startswith("--from="):
            yield from rest.split()[:-1]


@every_dockerfile
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    assert hadolint
    done = subprocess.run([hadolint, path], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@every_dockerfile
@pytest.mark.skipif(
    not BASE_IMAGE or shutil.which("buildah") is None, reason="no buildah, or LOCAL_BASE_IMAGE names no image of its storage"
)
@pytest.mark.timeout(1800)
def test_it_is_built_from_a_local_base_image_and_starts(path: Path) -> None:
    """Such as `buildah from scratch` with a tree that has Python 3.11 and pip: NVIDIA's images are not pulled for a test."""
    base = next(rest for word, rest in instructions(path) if word == "ARG")
    options = ["--isolation", "chroot", "--build-arg", f"{base}={BASE_IMAGE}", "--tag", f"localhost/test-{path.stem}"]
    subprocess.run(["buildah", "bud", *options, "--file", path, PROJECT], check=True)
    container = subprocess.run(
        ["buildah", "from", f"localhost/test-{path.stem}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    entry = next(json.loads(rest) for word, rest in reversed(instructions(path)) if word == "ENTRYPOINT")
    try:
        said = subprocess.run(
            ["buildah", "run", "--isolation", "chroot", container, "--", *entry, "--help"], check=True, capture_output=True, text=True
        )
    finally:
        subprocess.run(["buildah", "rm", container], check=False)
    assert "Many models on NVIDIA Triton" in said.stdout


@every_dockerfile
def test_the_base_image_has_no_default_and_the_process_no_privileges(path: Path) -> None:
    found = instructions(path)
    bases = [rest.split()[0] for word, rest in found if word == "FROM"]
    assert {re.fullmatch(r"\$\{(\w+)\}", base)[1] for base in bases} == {rest for word, rest in found if word == "ARG" and "=" not in rest}  # type: ignore[index]
    last_stage = found[max(index for index, (word, _) in enumerate(found) if word == "FROM") :]
    assert [rest for word, rest in last_stage if word == "USER"] == ["1000:1000"]
    assert all(json.loads(rest) for word, rest in found if word in ("ENTRYPOINT", "CMD")), "an exec form, which gets signals"


@every_dockerfile
def test_what_is_copied_is_there_and_is_in_the_context(path: Path) -> None:
    ignored = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert ignored[0] == "*"
    for source in copied(path):
        assert (PROJECT / source).exists(), source
        assert any(fnmatch.fnmatch(source, each) or source.startswith(f"{each}/") for each in kept), source


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as its image has it: a wheel, made of nothing but what the Dockerfile copies."""
    root = tmp_path_factory.mktemp("image")
    context, site = root / "context", root / "site"
    for source in copied(IMAGES / "gateway.Dockerfile"):
        if (PROJECT / source).is_dir():
            shutil.copytree(PROJECT / source, context / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            context.mkdir(exist_ok=True)
            shutil.copy(PROJECT / source, context / source)
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(root)], cwd=context, check=True, capture_output=True, timeout=120)
    (wheel,) = root.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def test_the_entry_point_starts_from_an_installed_wheel(installed: Path, tmp_path: Path) -> None:
    points = (next(installed.glob("*.dist-info")) / "entry_points.txt").read_text()
    module, function = re.findall(r"tidegate = (\S+):(\S+)", points)[0]
    variables = {"PYTHONPATH": str(installed), "PATH": os.environ["PATH"], "TIDEGATE_STATE_DIR": str(tmp_path), "COLUMNS": "160"}
    run = f"import sys; from {module} import {function}; sys.exit({function}())"
    for words in (["serve", "--help"], ["config", "show"]):
        done = subprocess.run(
            [sys.executable, "-c", run, *words], capture_output=True, text=True, env=variables, cwd=tmp_path, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "triton" in done.stdout.lower()


@pytest.mark.parametrize(("name", "is_fleet"), [("gateway", True), ("triton", False)])
def test_every_variable_of_the_images_and_of_compose_is_a_setting(installed: Path, tmp_path: Path, name: str, is_fleet: bool) -> None:
    given = dict(re.findall(r"\b(TIDEGATE_\w+)=(\S+)", (IMAGES / f"{name}.Dockerfile").read_text()))
    given |= {key: str(value) for key, value in COMPOSE["services"][name]["environment"].items() if key.startswith("TIDEGATE_")}
    assert len(given) >= 7
    given |= {"TIDEGATE_MEMORY_BUDGET": "72GiB"} if is_fleet else {}
    files = {"TIDEGATE_STATE_URL_FILE": "redis://redis:6379/0", "TIDEGATE_NODE_SECRET_FILE": "a secret that is long enough"}
    for key, content in files.items():
        if key in given:
            assert Path(given[key]).name in COMPOSE["services"][name]["secrets"]
            (tmp_path / key).write_text(f"{content}\n")
            given[key] = str(tmp_path / key)
    environment = {"PYTHONPATH": str(installed), "PATH": os.environ["PATH"], **given}
    check = "from control_plane.settings import load_settings; print(load_settings().is_fleet)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60)
    assert done.stdout == f"{is_fleet}\n", done.stderr


@every_dockerfile
def test_the_packages_of_the_images_are_the_locked_ones(path: Path) -> None:
    text = path.read_text()
    (sections,) = set(re.findall(r"dependencies\.(?:sections|bill) ([a-z -]+?)(?: \$\{STUBS\})? >", text))
    assert set(sections.split()) <= set(SECTIONS)
    assert "serve" in sections.split()
    assert "--require-hashes" in text
    assert re.search(r"pip (?:--python \S+ )?install .*--no-index \.", text), "the project itself brings nothing from outside"
    assert re.search(r"(?m)^setuptools==", LOCK.read_text().partition("# == torch")[0]), "by which it is built, from the lock"


@pytest.mark.parametrize(("stubs", "expected"), [("", set()), ("gpu", {"tensorrt-cu13", "cuda-bindings"})])
def test_stubs_get_what_they_are_to_have_and_the_bill_says_so(tmp_path: Path, stubs: str, expected: set[str]) -> None:
    """The image's own commands; pip is one that notes how it is called."""
    commands = next(rest for word, rest in instructions(IMAGES / "triton.Dockerfile") if word == "RUN").split(" && ")
    writing = [part for part in commands if "${STUBS}" in part]
    (installing,) = (part for part in commands if "--requirement" in part)
    assert len(writing) == 2
    program = tmp_path / "bin" / "python3"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$2" = pip ] && echo "$@" > {tmp_path}/pip && exit\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    script = " && ".join([*writing, installing]).replace("/opt/tidegate", str(tmp_path)).replace("/tmp/req", f"{tmp_path}/req")
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "STUBS": stubs}
    subprocess.run(["sh", "-c", script], cwd=PROJECT, env=environment, check=True, timeout=60)
    listed = {each["name"] for each in json.loads((tmp_path / "sbom.cdx.json").read_text())["components"]}
    called = (tmp_path / "pip").read_text().split()
    assert called[called.index("--python") + 1] == f"{tmp_path}/node", "which the stubs are of"
    assert {"--require-hashes", f"{tmp_path}/requirements.txt"} <= {*called}
    required = {line.partition("==")[0] for line in (tmp_path / "requirements.txt").read_text().splitlines() if "==" in line}
    for names in (listed, required):
        assert expected <= names
        assert ("tensorrt-cu13" in names) == bool(stubs)


def test_the_nodes_environment_is_made_where_ensurepip_is_missing(tmp_path: Path) -> None:
    """As NVIDIA's image has it; the package that goes in here stands for the locked ones."""
    command = next(rest for word, rest in instructions(IMAGES / "triton.Dockerfile") if word == "RUN" and "venv" in rest)
    made = command.split(" && ")[0].split()
    assert made[-1] == "/opt/tidegate/node"
    subprocess.run([sys.executable, *made[1:-1], str(tmp_path / "node")], check=True, timeout=120)
    assert "include-system-site-packages = true" in (tmp_path / "node/pyvenv.cfg").read_text(), "a layer's packages are found"
    wheel = tmp_path / "a_package-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a_package/__init__.py", "")
        archive.writestr("a_package-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: a-package\nVersion: 1\n")
        archive.writestr("a_package-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("a_package-1.dist-info/RECORD", "")
    text = (IMAGES / "triton.Dockerfile").read_text()
    installing = re.search(r"python3 (-m pip --python) /opt/tidegate/node (install --no-cache-dir --no-deps) --no-build", text)
    assert installing
    before, after = (each.split() for each in installing.groups())
    subprocess.run([sys.executable, *before, str(tmp_path / "node"), *after, "--no-index", str(wheel)], check=True, timeout=120)
    subprocess.run([tmp_path / "node/bin/python3", "-c", "import a_package"], check=True, timeout=60)


def test_tritons_user_may_read_what_is_copied_whatever_the_umask_of_the_checkout() -> None:
    """COPY keeps modes; what is installed in the image has the image's."""
    steps = instructions(IMAGES / "triton.Dockerfile")
    last = steps[max(number for number, (word, _) in enumerate(steps) if word == "FROM") :]
    sources = [source for word, rest in last if word == "COPY" and "--from=" not in rest for source in rest.split()[:-1]]
    (opened,) = [part for word, rest in last if word == "RUN" for part in rest.split(" && ") if part.startswith("chmod -R a+rX ")]
    assert {Path(each).name for each in sources} == {Path(each).name for each in opened.split()[3:]}


def test_triton_takes_what_gateways_let_through() -> None:
    """From 25.10 on it takes 64 MiB over HTTP by default."""
    (given,) = re.findall(r"TIDEGATE_TRITON_ARG=(\S+)", (IMAGES / "triton.Dockerfile").read_text())
    option, _, size = given.partition("=")
    assert (option, int(size)) == ("--http-max-input-size", GatewaySettings().max_body_bytes)
    assert "TIDEGATE_MAX_BODY_BYTES" not in "".join(path.read_text() for path in (PROJECT / "deploy").rglob("*.yaml"))


def test_the_bill_of_materials_is_the_lock_file() -> None:
    made = bill(["serve", "extras"], LOCK.read_text())
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    found = {each["name"]: each for each in made["components"]}
    assert found["httptools"]["purl"] == f"pkg:pypi/httptools@{found['httptools']['version']}"
    assert len(made["components"]) == len(found) > 40
    assert found["numpy"]["version"].startswith("1."), "of several pins the one for this Python"
    assert all(re.fullmatch("[0-9a-f]{64}", digest["content"]) for each in found.values() for digest in each["hashes"])
    assert made == bill(["serve", "extras"], LOCK.read_text())
    assert bill(["serve"], LOCK.read_text())["serialNumber"] != made["serialNumber"]


def test_a_bill_of_what_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonesuch"]) == 1
    assert "no section 'nonesuch'" in capsys.readouterr().err
