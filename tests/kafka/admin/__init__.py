"""Tests of instep.kafka.admin."""
