"""This machine: sockets and TLS, CPUs, memory, file descriptors, and the state folder of a run."""
