"""Input and output files of jobs, in folders and object stores that administrators allow."""
