"""Resources of kind Model in the Kubernetes API."""
