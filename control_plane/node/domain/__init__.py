"""Messages between gateways and nodes, and a node's decisions: which gateway it obeys and what it has promised. Pure."""
