"""Messages between gateways and nodes, and decisions of a node: whom it obeys and what it has promised. Pure."""
