from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError
from control_plane.triton.embedded.shared_libraries import advice, link_libpython, linked_python, missing_libraries, require_loadable

TRACE = """\
\tlinux-vdso.so.1 (0x00007ffd2a5f2000)
\tlibcudart-09529672.so.12.6.77 => /cache/nvidia_pytriton.libs/libcudart-09529672.so.12.6.77 (0x00007f0c)
\tlibpython3.11.so.1.0 => not found
\tlibfoo.so.2 => not found
\tlibpython3.11.so.1.0 => not found
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f0c)
"""


def patched_program(folder: Path, library: bytes) -> Path:
    """Return a real program in which the name of the C library is replaced by another one of the same
    length.
    """
    program = folder / "program"
    bash = shutil.which("bash")
    assert bash is not None
    program.write_bytes(Path(bash).read_bytes().replace(b"libc.so.6", library))
    program.chmod(0o755)
    return program


def test_missing_libraries_are_read_from_the_trace_each_once() -> None:
    assert missing_libraries(TRACE) == ["libpython3.11.so.1.0", "libfoo.so.2"]
    assert missing_libraries(TRACE.replace("not found", "/lib/x.so (0x1)")) == []


def test_a_program_with_all_its_libraries_passes() -> None:
    assert missing_libraries(require_loadable(Path(sys.executable), os.environ)) == []


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    program = patched_program(tmp_path, b"libq.so.9")
    expected = r"program needs libq\.so\.9, which the dynamic linker does not find: install the packages"
    with pytest.raises(StartupError, match=expected):
        require_loadable(program, os.environ)


def test_the_library_path_counts(tmp_path: Path) -> None:
    program = patched_program(tmp_path, b"libq.so.9")
    libc = next(line.split("=> ")[1].split(" (")[0] for line in _trace(sys.executable).splitlines() if "libc.so.6 =>" in line)
    (tmp_path / "libq.so.9").symlink_to(libc)

    trace = require_loadable(program, {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})

    assert f"libq.so.9 => {tmp_path}/libq.so.9" in trace


def _trace(program: str) -> str:
    return subprocess.run([program], env={"LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, text=True, check=True).stdout


def test_a_missing_libpython_names_the_package() -> None:
    assert "install the package libpython3.11 (apt-get install libpython3.11)" in advice(["libpython3.11.so.1.0", "libfoo.so.2"])


@pytest.mark.parametrize("content", [None, b"", b"\x7fELF nonsense"], ids=["not there", "empty", "no program"])
def test_what_cannot_be_run_is_named(tmp_path: Path, content: bytes | None) -> None:
    program = tmp_path / "program"
    if content is not None:
        program.write_bytes(content)
        program.chmod(0o755)
    with pytest.raises(StartupError, match=f"cannot run {program}"):
        require_loadable(program, os.environ)


def test_the_interpreters_own_libpython_is_linked_and_nothing_else(tmp_path: Path) -> None:
    stale = tmp_path / "lib" / "libpython3.9.so.1.0"
    stale.parent.mkdir()
    stale.symlink_to("/nowhere")
    link_libpython(tmp_path / "lib")
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    own = Path(sysconfig.get_config_var("LIBDIR"), name)
    assert {path.name: path.resolve() for path in (tmp_path / "lib").iterdir()} == ({name: own.resolve()} if own.exists() else {})


def test_the_python_that_a_program_is_linked_against_is_read_from_its_trace() -> None:
    trace = "\tlinux-vdso.so.1 (0x7ffe)\n\tlibpython3.12.so.1.0 => /usr/lib/x86_64-linux-gnu/libpython3.12.so.1.0 (0x7f)\n"
    assert linked_python(trace) == "3.12"
    assert linked_python("\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n") is None
