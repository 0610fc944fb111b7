"""Messages of KServe's v2 protocol and Triton's extensions: parsed, checked, and changed where a gateway must.

`routes` is the table of URLs; `requests` checks inference requests, `tensors` reads and writes their data.
"""
