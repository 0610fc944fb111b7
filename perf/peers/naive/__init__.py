"""Embedding services as people first write them: decent quick-start code, without the care that this project is about.

All load the weights that Tidegate's models are built from and answer `POST /embed` `{"texts": [...]}` with `{"embeddings": [[...]]}`.
"""
