"""Sockets of this machine: binding and listening, TLS, and the protection of ports without authentication."""
