"""Remedies in the terms of a sink: it has no settings file, no `target` and no `instep run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from instep import errors

START_AGAIN = "then start the query again"
# What to say in place of the usual remedy of a type.
USUAL: dict[type[errors.InstepError], str] = {
    errors.DatabaseUnreachable: "start the database, or correct host and port in `url`",
    errors.DatabaseMissing: (
        "create the database on that server (CREATE DATABASE ...), or correct its name in `url`"
    ),
    errors.DatabaseFull: f"free space on the disk of the database; {START_AGAIN}",
    errors.NotAuthorised: (
        "check the user and the password in `url`, and the user's permissions on the server"
    ),
    errors.MissingPart: "install it on the driver and on the executors",
    errors.Transient: "start the query again: Spark repeats the batch",
    errors.RowRefused: (
        "compare the rows with the table's constraints and triggers; or keep such rows in"
        ' quarantine: on_error = "park"'
    ),
    errors.Fenced: "end the other run first if this one should continue",
    errors.TargetChanged: f"undo the change, or adapt the query; {START_AGAIN}",
    errors.TargetReadOnly: (
        f"make the database writable again, or name the writable one in `url`; {START_AGAIN}"
    ),
    errors.PermissionLost: f"grant the permission again; {START_AGAIN}",
}
BY_TEXT = {kind.usual_remedy: text for kind, text in USUAL.items()}
SQLITE_FILE = (
    "create the file and the table in it, or correct the path in `url`; tasks on other machines"
    " than the driver do not have its file"
)
BY_TEXT["if the file was never created, run: instep init"] = SQLITE_FILE
BY_TEXT["restore it, or run instep init"] = SQLITE_FILE


@contextmanager
def in_terms_of_a_sink() -> Iterator[None]:
    """Give errors that pass a remedy that a user of a sink can follow."""
    try:
        yield
    except errors.InstepError as error:
        remedy = BY_TEXT.get(error.remedy, error.remedy)
        error.remedy = remedy.replace("`target`", "`url`")
        error.args = error.what, error.remedy  # what travels between processes
        raise
