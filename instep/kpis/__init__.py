"""KPIs: status changes counted per minute, and durations, kept in a table of the target."""
