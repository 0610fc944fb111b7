"""Data of tensors: its framing, its conversion between JSON and raw bytes, its canonical form, and outputs decoded."""
