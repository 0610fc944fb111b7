"""Clients of the stores of state: Redis, SQLite files and the Kubernetes API server, with deadlines and our own errors.

What is stored there, and in which form, is decided by the capabilities that use them.
"""
