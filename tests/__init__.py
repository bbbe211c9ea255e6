"""The tests: fast pure ones, and real ones against real servers."""
