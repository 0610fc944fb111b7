"""Commands on where requests go: routes, their rollouts, and other regions."""
