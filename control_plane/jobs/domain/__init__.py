"""Decisions and values of jobs. Pure; `job` is the record, `transitions` changes its state, `claims` chooses the next job."""
