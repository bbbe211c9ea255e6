"""`instep bench compare`: compare two results figure by figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from instep.cli import output
from instep.cli.options import AsJson, Debug
from instep_bench.commands import stored

if TYPE_CHECKING:
    from instep_bench.compare import Comparison, FigureComparison, FigureRange

app = typer.Typer()


@app.command("compare")
def compare_results(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="An id, a file, or latest.", autocompletion=stored.complete
        ),
    ],
    b: Annotated[
        str,
        typer.Argument(
            metavar="B", help="The result to compare with A.", autocompletion=stored.complete
        ),
    ],
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Compare two results figure by figure, and say which differences may be noise."""
    from instep_bench import compare

    (id_a, in_a), (id_b, in_b) = stored.find(a), stored.find(b)
    found = compare.compare(in_a, in_b)
    if as_json:
        output.print_json(
            {
                "a": stored.head(id_a, in_a),
                "b": stored.head(id_b, in_b),
                **msgspec.structs.asdict(found),
            }
        )
        return
    typer.echo(
        output.table(
            ("", "RESULT", "COMMAND"), [("A", id_a, in_a.command), ("B", id_b, in_b.command)]
        )
    )
    if found.differences:
        typer.echo("\ndifferent conditions:")
        typer.echo(
            output.table(
                ("WHAT", "A", "B"), [(one.what, one.a, one.b) for one in found.differences]
            )
        )
    if found.lines:
        head = ("FIGURE", "UNIT", "A", "A-RANGE", "B", "B-RANGE", "B/A", "B IS")
        typer.echo("\n" + output.table(head, [_compared(line) for line in found.lines]))
    for side, only in (("A", found.only_a), ("B", found.only_b)):
        for figure in only:
            typer.echo(f"only in {side}: {output.cell(figure)}")
    typer.echo("\n" + _noise(found))


def _compared(line: FigureComparison) -> Sequence[Any]:
    from instep.report.markup import figure
    from instep_bench.compare import described

    def ranged(one: FigureRange) -> str:
        return f"{figure(one.low)} – {figure(one.high)}" if one.rounds > 1 else "one round"

    ratio = "-" if line.ratio is None else f"{line.ratio:.2f}"
    word = (
        line.word if line.noise_known or line.word == "the same" else f"{line.word} (noise unknown)"
    )
    return (
        described(line),
        line.unit,
        figure(line.a.median),
        ranged(line.a),
        figure(line.b.median),
        ranged(line.b),
        ratio,
        word,
    )


def _noise(found: Comparison) -> str:
    widest = [
        f"not known in {side}" if share is None else f"{share:.0%} of its median in {side}"
        for side, share in (("A", found.widest_a), ("B", found.widest_b))
    ]
    return (
        f"noise: the widest range of a figure's rounds is {' and '.join(widest)};"
        " if both ranges of a figure overlap, the difference may be noise"
    )
