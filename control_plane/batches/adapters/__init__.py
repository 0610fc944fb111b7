"""Where files and batches are kept: a shelf of folders."""
