"""Values of OpenAI's files and batches, and the lines of input and output files. Pure; `batch` is where to start."""
