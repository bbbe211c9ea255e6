"""What one would write instead of a pipeline: a loop, Spark with its JDBC writer, Kafka Connect with a JDBC sink.

Each is what a good engineer would make of it in a day, tuned, and says which guarantee it keeps.
"""
