"""`instep init`: create the tables that a pipeline needs, or report what does not fit."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from instep import errors, extras, settings, terminal
from instep.cli import options, output, resources
from instep.cli.options import GLOBAL, AsJson, Config, Debug, Execute, PipelineNames

if TYPE_CHECKING:
    from instep.kafka.connection import Cluster

SAMPLE_RECORDS = 1_000
SAMPLE_TIMEOUT_S = 5.0  # for a sample that was not asked for
STATUSES_MAX = 1_000

app = typer.Typer()


@app.command()
def init(
    pipelines: PipelineNames = None,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the statements and change nothing.")
    ] = False,
    add_columns: Annotated[
        bool, typer.Option("--add-columns", help="Add the columns that an existing table lacks.")
    ] = False,
    infer: Annotated[
        bool | None,
        typer.Option(
            "--infer/--no-infer",
            help="Infer the types of new columns from the topic's last records."
            " Default: only if the topic can be read at once.",
        ),
    ] = None,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Create the tables of pipelines and KPIs, or report what does not fit.

    Tables that do not exist are created at once. With --add-columns, which changes a table that
    exists, only --execute changes anything.
    """
    if sql and execute:
        raise errors.SettingsError(
            "--sql only prints; it cannot be combined with --execute", "give one"
        )
    declared = settings.load(GLOBAL.config)
    plan_only = add_columns and not execute
    planned: list[str] = []
    faults: dict[str, list[errors.InstepError]] = {}
    statements: dict[str, list[str]] = {}
    for name, pipeline in options.select_tables(declared, pipelines).items():
        preparation = _Preparation(declared, name, pipeline, add_columns=add_columns, infer=infer)
        faults[name] = preparation.run(sql=sql, plan_only=plan_only, quiet=as_json)
        statements[name] = preparation.statements
        if sql or faults[name]:
            continue
        if plan_only and statements[name]:
            planned.append(name)
            continue
        if pipeline.transitions:
            _report_statuses(declared, name, pipeline)
        output.say(f"{name}: ready")
    if as_json:
        prepared = [
            {
                "pipeline": name,
                "executed": not sql and not faults[name] and name not in planned,
                "statements": statements[name],
                "errors": [str(fault) for fault in faults[name]],
            }
            for name in faults
        ]
        output.print_json({"pipelines": prepared})
    _report_faults(faults)
    if planned and not sql:
        output.say_dry_run()
    elif not sql and declared.spark.master.startswith("local"):
        _prepare_class_archives()


class _Preparation:
    """What `instep init` does for one pipeline."""

    def __init__(
        self,
        declared: settings.Settings,
        name: str,
        pipeline: settings.Pipeline,
        *,
        add_columns: bool,
        infer: bool | None,
    ) -> None:
        self._declared, self._name, self._pipeline = declared, name, pipeline
        self._is_kpi = name in declared.kpis
        self._add_columns, self._infer = add_columns, infer
        self.statements: list[str] = []

    def run(self, *, sql: bool, plan_only: bool, quiet: bool) -> list[errors.InstepError]:
        """Create what the pipeline lacks in its database, or print it. Return every fault."""
        from instep.sinks import facts, inspection, preparation

        def show(statements: Sequence[str]) -> None:
            self.statements += statements
            for statement in () if quiet else statements:
                typer.echo(f"{self._name}: {' '.join(statement.split())}")

        try:
            faults = preparation.faults(self._pipeline, add_columns=self._add_columns)
            if faults:
                return list(faults)
            typed = self._with_types()
            if sql:
                self.statements += preparation.statements(
                    typed, add_columns=self._add_columns, is_kpi=self._is_kpi
                )
                for statement in () if quiet else self.statements:
                    typer.echo(f"{statement};\n")
                return []
            if plan_only and (
                planned := preparation.statements(typed, add_columns=True, is_kpi=self._is_kpi)
            ):
                show(planned)
                return []
            preparation.prepare(
                typed, add_columns=self._add_columns, is_kpi=self._is_kpi, show=show
            )
            # A table that existed before may still not fit the mapping.
            inspection.inspect(self._name, self._pipeline)
            facts.refuse_own_without_rights(self._name, self._pipeline)
        except errors.InstepError as error:
            return [error]
        return []

    def _with_types(self) -> settings.Pipeline:
        """Return the pipeline with types for new columns that the topic's records show."""
        from instep.document import inference
        from instep.sinks import preparation

        name, pipeline = self._name, self._pipeline
        columns = preparation.untyped(pipeline, add_columns=self._add_columns)
        further = preparation.untyped_further(pipeline, add_columns=self._add_columns)
        fields = [column for column in columns if column not in pipeline.keys]
        fields_of_any = [*fields, *(column for of_table in further for column in of_table)]
        if self._infer is False or not (fields_of_any or (columns and self._infer)):
            return pipeline
        if pipeline.transform is not None:
            types = resources.result_types(self._declared, name, pipeline)
            return self._said(
                inference.typed_as(pipeline, types, columns), fields, (), "the transformation"
            )
        try:
            with terminal.busy(sys.stderr, f"{name}: reading the newest records"):
                values = _sample(self._declared, pipeline.topic, required=bool(self._infer))
        except errors.InstepError as error:
            if self._infer:
                raise
            values = []
            output.say(f"{name}: column types could not be inferred from the topic: {error.what}")
        typed = inference.typed(pipeline, values, columns, further)
        return self._said(
            typed, fields, further, f"{len(values):,} records of topic {pipeline.topic!r}"
        )

    def _said(
        self,
        typed: settings.Pipeline,
        fields: Sequence[str],
        further: Sequence[Sequence[str]],
        source: str,
    ) -> settings.Pipeline:
        """Print which types were inferred from what, and return the pipeline with them."""
        name, pipeline = self._name, self._pipeline
        types = {column: typed.mapped[column].type for column in fields}
        for table, of_table in zip(typed.tables, further, strict=True):
            types |= {f"{table.table}.{column}": table.mapped[column].type for column in of_table}
        unknown = [column for column, kind in types.items() if not kind]
        types |= {k: kind for k, kind in typed.key_types.items() if kind != pipeline.key_types[k]}
        inferred = ", ".join(f"{column} {kind}" for column, kind in types.items() if kind)
        if inferred:
            output.say(f"{name}: types inferred from {source}: {inferred}")
        if unknown:
            output.say(
                f"{name}: no type is known for {', '.join(unknown)}:"
                " declare the column's type if the field is not text"
            )
        return typed


def _report_faults(faults: dict[str, list[errors.InstepError]]) -> None:
    """Raise the only fault, or list all of them and exit with the status of the first one."""
    listed = [(name, fault) for name, of_pipeline in faults.items() for fault in of_pipeline]
    if len(listed) == 1:
        raise listed[0][1]
    for name, fault in listed:
        output.say(f"{output.ERROR}{name}: {fault}")
    if listed:
        raise typer.Exit(listed[0][1].exit_status)


def _report_statuses(declared: settings.Settings, name: str, pipeline: settings.Pipeline) -> None:
    """Report statuses that are unreachable, possibly misspelt, or only in the table."""
    from instep.document import transitions

    with (
        resources.maintenance_session(declared, name, reads=True) as session,
        session.read() as sink,
    ):
        statuses = sink.table.statuses(STATUSES_MAX)
    for finding in transitions.findings(transitions.declare(pipeline.transitions), statuses):
        output.say(f"{name}: {finding}")


def _prepare_class_archives() -> None:
    """Prepare quicker starts of Spark, if Spark is installed."""
    from instep.local import class_archives

    # The tables may be created from a machine that runs no pipelines.
    with contextlib.suppress(errors.MissingPart):
        extras.require_spark()
        class_archives.prepare_in_background(class_archives.SPARK, output.say)


def _sample(declared: settings.Settings, topic: str, *, required: bool) -> list[bytes | None]:
    """Return the values of the topic's last records.

    Unless the sample is required, start no broker and do not wait long for one.
    """
    from instep.kafka.connection import Cluster
    from instep.local import registry

    if required:
        with resources.cluster(declared) as cluster:
            return _last_values(cluster, topic)
    bootstrap = declared.kafka.bootstrap or registry.bootstrap()
    if bootstrap is None:
        return []
    with Cluster(declared.kafka, bootstrap, SAMPLE_TIMEOUT_S) as cluster:
        return _last_values(cluster, topic)


def _last_values(cluster: Cluster, topic: str) -> list[bytes | None]:
    from instep.kafka import offsets, reading, topics

    partitions = topics.describe(cluster, topic).partitions
    first = offsets.earliest(cluster, topic, partitions)
    end = offsets.latest(cluster, topic, partitions)
    per_partition = max(1, SAMPLE_RECORDS // len(partitions))
    ranges = {
        partition: (max(first[partition], end[partition] - per_partition), end[partition])
        for partition in partitions
    }
    return [record.value for record in reading.read(cluster, topic, ranges)]
