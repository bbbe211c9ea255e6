"""Tests of the polling bridge."""
