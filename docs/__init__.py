"""The documents: pages in Markdown, what writes the reference (`generate.py`, from `generator/`), and what makes links work in the
site (`links.py`)."""
