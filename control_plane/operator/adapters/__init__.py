"""Client of the Kubernetes API for resources of kind Model."""
