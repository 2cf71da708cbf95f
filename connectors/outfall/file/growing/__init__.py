"""Growing files: each part is appended to by one writer, and truncated to its recorded length after a failure."""
