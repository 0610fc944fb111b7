"""Pure decisions of `sharding`."""
