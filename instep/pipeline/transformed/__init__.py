"""Pipelines with a transformation: Spark reads batches, transforms them, and tasks apply them."""
