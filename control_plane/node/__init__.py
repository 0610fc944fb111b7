"""Node agents: a process beside a Triton on another host, and the gateway's client of it.

`tidegate node` does there what a gateway does for an embedded Triton, and serves gateways over a small authenticated
protocol. Inference requests go from gateways straight to that Triton.
"""
