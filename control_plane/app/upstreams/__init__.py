"""The Tritons of a gateway, wired: which there are, the clients of each, and where its models come from."""
