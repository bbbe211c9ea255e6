"""SENT: the publisher SDK. Installs without Spark."""
