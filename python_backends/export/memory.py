"""Measures the memory of a loaded variant: `python -m python_backends.export.memory MODEL_DIR VARIANT
DIRECTORY` prints bytes.

A process of its own loads the recipe and NumPy, reads its resident set size (VmRSS), opens the runtime on the
files in DIRECTORY, runs the largest cell of the latency table twice, and reads it again. The difference is
what each stub holds: the runtime's libraries, weights and buffers. On a GPU the scarce memory is the
device's, so that is measured instead, as the driver reports it for all processes: no other process may
allocate or free device memory meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import python_backends
from python_backends.export.discovery import Target, load_targets
from python_backends.export.measure import largest_cell
from python_backends.export.opening import opened
from python_backends.export.recipe import BuildError
from python_backends.runtime.parent import end_with_parent

STATUS = Path("/proc/self/status")

# Opening and two runs take seconds; a compiled program's first may take minutes.
DEADLINE_S = 900


def measure_resident_bytes(target: Target, directory: Path) -> int:
    """Measure in a fresh process, which imports this package from the same place.

    Raises:
        BuildError: The process failed; the text has the last line of its output.
    """
    command = [sys.executable, "-m", __name__, str(target.model_directory.resolve()), target.variant, str(directory.resolve())]
    home = Path(python_backends.__file__).resolve().parents[1]
    try:
        answer = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        return int(answer.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as exc:
        raise BuildError(f"its memory could not be measured: {(exc.stderr.strip().splitlines() or ['no reason given'])[-1]}") from exc
    except (subprocess.TimeoutExpired, ValueError, IndexError) as exc:
        raise BuildError(f"its memory could not be measured: {exc}") from exc


def main(model_directory: str, variant: str, directory: str) -> None:
    """Print by how many bytes the memory grows when the variant is loaded and run."""
    end_with_parent()
    (target,) = (target for target in load_targets(Path(model_directory)) if target.variant == variant)
    serving = target.recipe.serving
    assert serving is not None
    in_use = device_memory_in_use if serving.device == "gpu" else resident_set
    inputs = serving.trial.inputs(*largest_cell(serving.measured_tokens))
    before = in_use()
    with opened(target, Path(directory)) as run:
        for _ in range(2):
            run([tensor.name for tensor in serving.trial.config.outputs], inputs)
        print(max(0, in_use() - before))


def resident_set(status: Path = STATUS) -> int:
    """Return the resident set size (VmRSS) of this process, in bytes."""
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def device_memory_in_use() -> int:
    """Return the memory in use on the first GPU, in bytes."""
    query = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout) * 2**20


if __name__ == "__main__":
    main(*sys.argv[1:])
