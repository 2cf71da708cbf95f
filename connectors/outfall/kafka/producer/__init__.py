"""librdkafka's producers: of plain rows, and of transactions.

`base` has what both do: the queue, acknowledgments, errors. `cache` keeps them connected from one epoch to the next.
"""
