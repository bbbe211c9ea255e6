"""Archives: a topic as a Delta table, exactly once, with its position in the same commit.

columns.py, files.py    records as Parquet files
table.py                the Delta table: positions, epoch, commits
registration.py         notes in Kafka that the table was begun
writer.py               collects records and commits them
reader.py               reads them again, in order
compaction.py           joins small files, beside the writer
"""
