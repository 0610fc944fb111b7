"""Sockets of this machine: bound and listened on, TLS, and what protects ports without authentication."""
