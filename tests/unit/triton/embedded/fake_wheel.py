"""Fake wheel with the layout of the real one, whose programs are scripts that report how they were run."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

SERVER = "pytriton/tritonserver"
LIBS = "nvidia_pytriton.libs"
NAME = "nvidia_pytriton-0.7.0-py3-none-manylinux_2_35_x86_64.whl"

TRITON = f"""#!{sys.executable}
import json, os, signal, sys, time
if sys.argv[1:] == ["--help"]:
    sys.exit("  --log-verbose <integer>\\n\\tset verbose level: see also --nothing\\n  --http-address <string>")
print("stand-in Triton says hello", flush=True)
stub = os.fork()
if stub == 0:
    time.sleep(60)
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ.get("STUBBORN") else lambda *_: sys.exit(0))
report = {{"stub": stub, "flags": sys.argv[1:], "environment": dict(os.environ), "cwd": os.getcwd(), "pid": os.getpid()}}
with open("../report.partial", "w") as partial:
    json.dump(report, partial)
os.rename("../report.partial", "../report")
if os.environ.get("FAIL_AT_START"):
    sys.exit("error: creating server: Invalid argument")
time.sleep(60)
"""

FILES = {
    f"{SERVER}/bin/tritonserver": TRITON,
    f"{SERVER}/backends/python/libtriton_python.so": "backend",
    f"{SERVER}/backends/python/triton_python_backend_utils.py": "# utils",
    f"{SERVER}/caches/local/libtritoncache_local.so": "cache",
    f"{LIBS}/libcudart-09529672.so.12.6.77": "cudart",
    f"{LIBS}/libpython3-419a3a08.13.so.1.0": "libpython",
    **{f"{SERVER}/python_backend_stubs/{version}/triton_python_backend_stub": f"#!{sys.executable}\n# stub for {version}\n"
       for version in ("3.8", "3.11", "3.12", "3.13")},
    "pytriton/__init__.py": "raise ImportError('never imported')",
    "nvidia_pytriton-0.7.0.dist-info/METADATA": "Name: nvidia-pytriton",
}  # fmt: skip


def write_wheel(cache_dir: Path) -> Path:
    """Put the fake wheel where `make setup` puts the real one."""
    wheel = cache_dir / "wheels" / NAME
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    return wheel
