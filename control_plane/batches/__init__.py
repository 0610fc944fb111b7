"""OpenAI's files and batches: a file of embeddings requests becomes asynchronous jobs, and their answers an output file."""
