"""Decisions and values of jobs. Pure; `job` is the record, `transitions` its states, `claims` chooses the next one to compute."""
