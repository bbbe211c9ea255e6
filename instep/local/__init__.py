"""LENT: real servers on this machine: Kafka, PostgreSQL, MariaDB: fetched, started, stopped, killed."""
