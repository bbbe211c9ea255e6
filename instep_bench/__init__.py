"""Benchmarks of the pipeline and of the baselines."""
