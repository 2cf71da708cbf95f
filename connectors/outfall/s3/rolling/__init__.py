"""Rows of several epochs gathered into large objects: kept in hidden pieces, composed when a bound is reached.

```
writer              gathers, and composes; what waits goes from epoch to epoch in its state
buffered_object     one object to be: its pieces, its bytes, and the form that these are in
pieces              hidden objects, and the state that names them
```
"""
