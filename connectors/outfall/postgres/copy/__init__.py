"""COPY: converts values to column types, and encodes and sends them."""
