"""Memory of this machine: what processes hold of it and of GPUs, and how this process gives its own back."""
