"""Rows of several epochs gathered into large objects: kept in hidden pieces, composed when a bound is reached."""
