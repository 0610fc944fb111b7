"""The wire between gateways and nodes: connections, their authentication and frames."""
