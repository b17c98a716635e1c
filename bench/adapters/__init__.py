"""The arms of the comparison, one file each."""
