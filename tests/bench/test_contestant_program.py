"""Test what a contestant's program reports about an error."""

from __future__ import annotations

from instep_bench import contestant_program


def test_an_error_is_reported_by_its_beginning_and_its_end() -> None:
    assert contestant_program.brief("ValueError: no such thing") == "ValueError: no such thing"
    trace = "\n".join(
        f"\tat org.apache.spark.Some.method{number}(Some.scala)" for number in range(200)
    )
    text = (
        f'StreamingQueryException: it ended\nTraceback:\n  File "x.py", line 3\n{trace}\n'
        f"Caused by: Deadlock found\n{trace}"
    )
    assert (
        contestant_program.brief(text)
        == "StreamingQueryException: it ended Traceback: Caused by: Deadlock found"
    )
    long = contestant_program.brief("begin " + "x" * 5_000 + " end")
    assert len(long) < 1_000
    assert long.startswith("begin x")
    assert long.endswith("x end")
