"""What goes in and out of `POST /embed`."""

from __future__ import annotations

from pydantic import BaseModel


class Texts(BaseModel):
    texts: list[str]


class Embeddings(BaseModel):
    embeddings: list[list[float]]
