"""COPY: values made fit for columns, and their bytes on the way."""
