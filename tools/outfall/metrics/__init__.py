"""What the log of a step says about it, for people and for monitoring. Reads only; needs no Spark."""
