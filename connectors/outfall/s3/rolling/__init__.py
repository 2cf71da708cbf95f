"""Gathers the rows of several epochs into large objects: stores them in hidden pieces, and composes them at a bound.

```
writer              gathers and composes; its state carries buffered rows from epoch to epoch
buffered_object     one future object: its pieces, its buffered bytes, and their form
pieces              hidden objects, and the state that names them
```
"""
