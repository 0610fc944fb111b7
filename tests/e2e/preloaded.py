"""Everything that processes of `forks` run, imported once in the one that they are forked from."""

import control_plane.__main__  # first: it tells gRPC what holds for its import
from control_plane.host.memory.garbage import garbage_collector_paused

# Else each process would look for garbage among all of this as it starts, and copy every page on which it looks.
with garbage_collector_paused():
    import control_plane.admin.api
    import control_plane.admin.server
    import control_plane.app.gateway.application
    import control_plane.app.node
    import control_plane.cli.node
    import control_plane.cli.serve
    import tests.e2e.forks
    import tests.e2e.jobs.mortal_jobs
    from control_plane.protocols.http2 import huffman

    huffman.prepare()  # which every gateway does

__all__ = ["control_plane", "tests"]
