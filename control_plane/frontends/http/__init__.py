"""HTTP/1.1 at the data and metrics ports: connections, requests and streamed answers.

`server` accepts; `connection` is one client's, `requests` parses what it sends, and `answers` answers it.
"""
