"""Routes: which of its models each request goes to, and what a rollout learns of the requests."""
