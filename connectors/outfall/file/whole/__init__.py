"""Whole files: written to a hidden directory and published when their epoch is committed."""
