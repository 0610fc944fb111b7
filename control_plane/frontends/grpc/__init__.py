"""gRPC over HTTP/2 at the data port: connections, calls and their messages.

`server` accepts connections; `connection` serves one client, `call` one call on its connection.
"""
