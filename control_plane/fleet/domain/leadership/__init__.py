"""Leadership: the election of the process that may load and unload, and what the others report to it. Pure."""
