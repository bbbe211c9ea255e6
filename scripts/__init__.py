"""Tooling of this repository: the documentation site and the recording of the demo."""
