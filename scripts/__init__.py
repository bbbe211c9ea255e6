"""Tooling of this repository: the documentation site, its generated pages, and the demo's recording."""
