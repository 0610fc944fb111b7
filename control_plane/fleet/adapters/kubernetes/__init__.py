"""Fleet adapters for the Kubernetes API: the servers from EndpointSlices, and the leader's Lease."""
