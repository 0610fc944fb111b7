"""Node agents: what stands beside one Triton on another host, and how gateways use it.

`tidegate node` runs there what a gateway runs for an embedded Triton, and answers the calls of gateways over a
small authenticated wire. Inference traffic goes straight from gateways to that Triton.
"""
