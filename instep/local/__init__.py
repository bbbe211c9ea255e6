"""LENT: real servers on this machine: Kafka, PostgreSQL, MariaDB, other queues: fetched, started, stopped, killed."""
