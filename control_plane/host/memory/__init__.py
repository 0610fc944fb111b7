"""Memory of this machine: what processes use of it and of GPUs, and how this process returns unused memory."""
