"""The delivery by epochs: tasks stage rows, and the driver publishes them one epoch at a time."""
