"""The parent's side: starts and watches its workers, and tells each what it may answer by."""
