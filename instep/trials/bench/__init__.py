"""MEASURED: how fast, how fresh and how large, on the user's own machine and servers, beside what one would use instead.

`polling`, `apply`, `freshness` and `scale` each have `Options` and a `run` that gives a `Result`; `result.py` keeps it, and
`compare.py` holds two against each other. No figure here is ever asserted by a test.
"""
