"""The micro-batch engine: Structured Streaming reads the topic and runs a task per partition."""
