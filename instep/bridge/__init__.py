"""The polling bridge: polls a source's query service, and publishes what changed."""
