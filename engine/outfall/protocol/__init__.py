"""The epoch protocol, independent of any engine."""
