"""The public sink of Spark streams: rows of any DataFrame into tables, exactly once.

Two doors lead to one transaction in the driver (`merge.py`):

- `df.writeStream.format("instep")` (`data_source.py`), for append mode. It needs no registration:
  Spark finds the module `pyspark_instep`.
- `foreachBatch(instep.sink(...))` (`foreach_batch.py`), for update mode.

A task encodes its rows (`encoding.py`) and hands them to the driver: in its message if they are
few, else in the database, under a random token. Only tokens that reach the driver count, so the
rows of repeated, speculative and late tasks are never mixed. The driver applies all rows of a
micro-batch, of all tables, together with the batch's id (`decision.py` says whether it may).
"""
