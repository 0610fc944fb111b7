"""What each process that answers requests has, wired: the frontends, and all that decides about requests."""
