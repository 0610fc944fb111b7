"""HTTP/1.1 at the data and metrics ports: connections, requests and streamed answers.

`server` accepts connections; `connection` serves one client, `requests` parses its requests, `answers` writes the answers.
"""
