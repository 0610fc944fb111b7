"""What a fleet keeps in the Kubernetes API: its servers (EndpointSlices) and its leader's Lease."""
