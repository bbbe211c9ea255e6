"""The Kafka lab: common claims about Kafka, tested on real brokers."""
