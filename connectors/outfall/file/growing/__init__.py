"""Growing files: parts that are appended to, each by one writer, and cut back to what counts."""
