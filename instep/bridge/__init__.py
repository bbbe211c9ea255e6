"""The polling bridge: asks a source's query service, and publishes what changed."""
