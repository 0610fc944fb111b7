"""Values and sums of metering: usage, costs and prices. Pure; `usage` is where to start."""
