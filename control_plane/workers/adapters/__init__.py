"""A worker process as its parent starts it, and the socket between the two."""
