"""Embedded Triton: a child process, unpacked from a wheel, on one machine with nothing to install.

    installation.py       unpacks the wheel into the cache folder, once per Python version
    shared_libraries.py   checks that the dynamic linker finds all that Triton and its stub link against
    backend_directory.py  puts the wheel's `python` backend and ours side by side, with what stubs can import
    command.py            Triton's flags
    known_flags.py        checks that Triton knows the flags an operator passes to it
    environment.py        the environment variables that Triton inherits
    guardian.py           program that starts Triton and lets none of its processes outlive us
    account.py            the user that Triton runs as, if it is not ours
    confine.py            program that drops privileges and then becomes Triton; the guardian starts it
    log_file.py           Triton's log: rotation, and its tail for messages
    watchdogs/            its loads and the stubs of its models: every load ends, and a stub that died is noticed
    process.py            `triton/ports.TritonLauncher` and `triton/ports.TritonProcess`

What Triton reads lies under `<state_dir>/triton/`: `repository/` (managed_repository.py), `backends/`,
`imports/`, `lib/` and, while it runs, its Unix sockets below `sockets/`.
"""
