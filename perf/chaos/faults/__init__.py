"""What is done to a site while callers ask: to processes, to stores and disks, and by a client that floods."""
