"""The one write path: every event reaches its row through this package. No Spark."""
