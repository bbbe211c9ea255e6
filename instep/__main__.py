"""`python -m instep` is `instep`."""

from instep.cli import main

main()
