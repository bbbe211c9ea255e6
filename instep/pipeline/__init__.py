"""Run pipelines: read the topic with Spark and write the target table exactly once."""
