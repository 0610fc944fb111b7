"""The machine that a process runs on: sockets and TLS, CPUs, memory, file descriptors, and the state folder."""
