"""Evidence of rollouts in the Redis that gateways share."""
