"""Fleet: many Tritons behind one or several gateways, with more models than fit into their memory.

`domain` decides (which server loads a replica, which replica gets a request, which gateway leads), `view` is the fleet's
state as this process sees it, `routing` sends requests, `loading` carries out loads and unloads, `leadership` elects the
gateway that may load, and `membership` lets servers join and leave. `simulation` runs the same decisions in virtual time.
"""
