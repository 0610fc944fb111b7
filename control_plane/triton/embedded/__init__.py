"""Triton as a child process, out of a wheel: for one machine, with nothing to install.

    installation.py       the wheel, unpacked into the cache folder once per Python version
    shared_libraries.py   whether the dynamic linker finds everything Triton and its Python stub link against
    backend_directory.py  the wheel's `python` backend and ours side by side, and what stubs can import
    command.py            Triton's flags
    known_flags.py        whether Triton knows the flags that an operator hands it
    environment.py        Triton's environment: what computing needs of ours
    guardian.py           a program of its own that starts Triton and lets nothing of it outlive us
    account.py            the user as whom Triton runs, where that is another one than ours
    confine.py            what the guardian starts: it gives up what Triton is not to have, and becomes it
    log_file.py           Triton's log: rotated, its tail in every message about an end
    stubs.py              the stubs of its Python models, and how they ended
    load_watch.py         `models/ports.LoadWatch`: every load ends, and one that failed says why
    abandoned_load.py     a program of its own that answers Triton where a stub has died during a load
    process.py            `triton/ports.TritonLauncher` and `triton/ports.TritonProcess`

What Triton reads lies under `<state_dir>/triton/`: `repository/` (managed_repository.py), `backends/`, `imports/`, `lib/`, and while it
runs its Unix sockets, below `sockets/`.
"""
