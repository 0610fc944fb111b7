"""What a Model resource says, and what its status says back. Pure."""
