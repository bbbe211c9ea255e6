"""Benchmarks: the pipeline beside what a team would write instead."""
