"""Values and errors that every layer speaks; imports nothing of ours and does no I/O."""
