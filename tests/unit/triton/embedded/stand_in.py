"""Stand-in for Triton: it uses shared memory, has a child that only SIGKILL ends, and ends as a test says.

stand_in.py REPORT REGION [stubborn] [escape] [exit=N] [raise=N]

Writes its own and its child's pid to REPORT, then waits for SIGTERM. `stubborn` ignores that; the child of
`escape` is nobody's child and in a session of its own.
"""

import os
import signal
import sys
import time
from pathlib import Path


def main(report: str, region: str, *how: str) -> int:
    Path("/dev/shm", region).touch()
    if "stubborn" in how:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    child = spawn_child(escape="escape" in how)
    partial = Path(report + ".partial")
    partial.write_text(f"{os.getpid()} {child}")
    partial.rename(report)
    for each in how:
        if each.startswith("exit="):
            return int(each[5:])
        if each.startswith("raise="):
            os.kill(os.getpid(), int(each[6:]))
    while True:
        time.sleep(60)


def spawn_child(*, escape: bool) -> int:
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        if escape:
            os.setsid()
        if not escape or os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
        os._exit(0)
    if escape:
        os.waitpid(between, 0)
    return int(os.read(reader, 20))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
