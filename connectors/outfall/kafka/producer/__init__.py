"""librdkafka's producers: of plain rows, and of transactions.

`base` has what both do: the queue, acknowledgments, errors. `refusals` finds the records at fault in
a refused batch. `cache` keeps them connected from one epoch to the next.
"""
