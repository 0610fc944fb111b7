"""OpenAI's files and batches over HTTP: their paths, and the computation of a batch's lines."""
