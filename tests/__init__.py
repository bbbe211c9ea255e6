"""The tests: fast ones without servers, and integration tests against real servers."""
