"""Mixed-fault campaigns: real systems under seeded random faults, compared with a model at the end.

`make campaign` runs them; they take too long for `make test`. One scenario is one pipeline. Each
database has four: with and without an order, with and without a constrained table. They run in one
`instep run`, so every fault hits all four.

What makes the outcome predictable:

- The model is folded from the log as it is after the campaign (read committed). Events that the
  publisher could not send, or aborted, must not show in the table.
- Without an order, a document stays in its partition: when a topic grows, only new documents go to
  its new partitions. A document that moved would have two logs without an order between them, and
  no outcome would be wrong.
- With an order, half of the documents move when the topic grows. They get full events only, no
  deletes and no events that are refused, so the highest version decides the row. Whether one of
  their events is applied or stale depends on which partition is ahead, so their verdicts are only
  counted: one for each record. Everything else is compared exactly.
"""
