"""Fleet: many Tritons behind one gateway or several, and more models than fit into their memory.

`domain` decides (where a replica is placed, which server gets a request, who leads), `view` is the fleet as
this process sees it, `routing` sends requests, `loading` carries loads out, `ownership` elects the gateway
that may, and `membership` lets servers join and leave. `simulation` runs the same decisions in virtual time.
"""
