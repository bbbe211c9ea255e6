"""Compare the target table with its source, and repair it."""
