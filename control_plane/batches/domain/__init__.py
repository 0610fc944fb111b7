"""Values of OpenAI's files and batches, and the lines of their input and output. Pure; `batch` is where to start."""
