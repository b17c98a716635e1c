"""Measures the executor against the frameworks; see README.md."""
