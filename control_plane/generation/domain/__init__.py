"""Codecs between OpenAI's API of completions and the requests of generative models. Pure; `completion_request` and
`completion_answer` are one end, `generation_tensors` the other.
"""
