"""The epoch protocol, free of any engine."""
