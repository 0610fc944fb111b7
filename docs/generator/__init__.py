"""The reference's pages, a module for each: its `blocks` are what stands on it, in Markdown. `docs/generate.py` writes them."""
