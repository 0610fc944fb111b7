"""Triton backend `text_tokenizer`: TEXT BYTES [batch, 1] -> INPUT_IDS and ATTENTION_MASK, both INT64 [batch,
length].

For requests that ask for it also TOKENS INT32 [batch, 1]: the number of tokens of each text.

The version directory holds a `tokenizer.json` of the Hugging Face `tokenizers` library (another name goes
into `default_model_filename`). Parameters: `max_tokens` (256) and `pad_to_multiple_of` (1).
"""
