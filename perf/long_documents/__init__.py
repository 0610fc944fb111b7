"""Documents of many pages: a plain synchronous server beside the platform, part by part; `python -m perf.long_documents`."""
