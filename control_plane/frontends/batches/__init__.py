"""OpenAI's files and batches over HTTP: their paths, and the computing of a batch's lines."""
