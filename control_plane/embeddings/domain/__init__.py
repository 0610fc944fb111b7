"""Codecs between OpenAI's embeddings API (`openai_request`) and the tensors of text models (`embedding_tensors`). Pure."""
