"""Retries: the table of faults that may be sent again, the retry budget, and the quarantine for queries of death."""
