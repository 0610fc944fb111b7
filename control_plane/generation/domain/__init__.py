"""Codecs between OpenAI's completions API (`completion_request`, `completion_answer`) and the tensors of generative models
(`generation_tensors`). Pure.
"""
