"""`tidegate`, also as `python -m control_plane`."""

import os

# gRPC hooks fork() to survive it, which nothing of ours needs (we spawn and exec), and says so on every start of Triton.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from control_plane.host.memory.garbage import collect_no_garbage_in_forks, garbage_collector_paused

collect_no_garbage_in_forks()
with garbage_collector_paused():
    from control_plane.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
