"""From records to tables; see README.md."""
