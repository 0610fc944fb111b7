"""What hedged requests gain and cost; see `__main__`."""
