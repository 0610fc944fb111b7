"""gRPC over HTTP/2 at the data port: connections, calls and their messages.

`server` accepts; `connection` is one client's, `call` one call on it.
"""
