"""`delivery="epoch"`: tasks stage rows, the driver publishes them an epoch at a time."""
