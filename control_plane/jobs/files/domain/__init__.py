"""Places of callers' files: which an administrator has allowed. Pure."""
