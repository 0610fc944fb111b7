"""Input and output of jobs in folders and object stores that administrators have allowed."""
