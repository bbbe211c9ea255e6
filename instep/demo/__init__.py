"""The demo: a contract system that polls beside one that follows events."""
