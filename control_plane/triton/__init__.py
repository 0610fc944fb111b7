"""One Triton server: the clients that talk to it, and its process where this program starts it.

`ports` is its interface for the rest of the gateway; `adapters` has its HTTP, gRPC and control clients; `supervisor` starts
and restarts the `embedded` process, `attachment` watches one that runs elsewhere; `servers` knows which servers are up.
"""
