"""Small general algorithms that several capabilities share. Pure."""
