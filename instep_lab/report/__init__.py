"""Reports of lab runs: a page, plots, and docs/lab."""
