"""Tables, plots and pages for reports of the demo, the benchmarks and the lab."""
