"""Local servers: Kafka, PostgreSQL, MariaDB and others, fetched and run on this machine."""
