"""Whole files: written where readers do not look, and published by the commit of their epoch."""
