"""Leadership: the lease by which one process may load and unload models, and the load reports of the others. Pure."""
