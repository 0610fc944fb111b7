"""Text generation as OpenAI's API has it: completions and chats of generative models behind Triton, streamed or whole.

`generation` answers a call, `generative_models` knows which models generate text, `generated_stream` follows one answer as it
comes, and `adapters/template_process` writes chats as prompts. A model takes text as Triton's vLLM backend does; one with
another interface needs a reader of its configuration (`domain/generative_model`) and a codec (`domain/generation_tensors`).
"""
