"""Transport between gateways and nodes: connections, authentication and frames."""
