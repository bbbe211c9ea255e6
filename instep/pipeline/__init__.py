"""PROCESSED: the Spark jobs. The only place that knows pyspark."""
