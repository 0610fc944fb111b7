"""Storage of files and batches in folders (the shelf)."""
