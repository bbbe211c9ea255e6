"""instep keeps a database table in step with another system's records: Kafka to SQL through Spark.

The folders of this package, read from top to bottom, are the road one status event takes.
"""

__version__ = "0.1.0"
