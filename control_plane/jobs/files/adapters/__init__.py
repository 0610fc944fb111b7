"""Folders and object stores that jobs read their input from and write their output to."""
