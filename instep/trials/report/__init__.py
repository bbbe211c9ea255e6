"""What a user sees of a run of the lab: a page for the browser, one for docs/lab, and text for the terminal.

`contents` gathers a run from its folder; the others are pure functions from that to text.
"""
