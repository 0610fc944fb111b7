"""HTTP/1.1 at the data and metrics ports: connections, requests and streamed answers.

`server` accepts; `connection` is one client's, and `request_reader` parses what it sends.
"""
