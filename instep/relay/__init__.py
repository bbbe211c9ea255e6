"""The relay: publish an outbox table to a topic, exactly once and in order per document."""
