"""The status event, its wire format, the mapping and the guard. Pure: no I/O, no Spark."""
