"""Reports of lab runs: an HTML page, and the Markdown page and plots of docs/lab."""
