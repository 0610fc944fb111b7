"""OpenAI's files and batches: lists of embeddings requests that become asynchronous jobs, and files of their answers."""
