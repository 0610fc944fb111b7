"""One Triton: the clients that speak to it, and the process where it is ours.

`ports` is what the rest of the gateway knows of it; `adapters` has its HTTP, gRPC and control clients;
`supervisor` starts and restarts the `embedded` process, `attachment` watches one that runs elsewhere;
`servers` says which is up.
"""
