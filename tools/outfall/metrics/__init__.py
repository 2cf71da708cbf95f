"""The state of steps from their logs, for commands and monitoring. Reads only; does not need Spark."""
