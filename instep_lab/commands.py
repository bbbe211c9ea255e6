"""The commands of `instep lab`, which tests common claims about Kafka on real servers."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from instep import errors, settings, terminal
from instep.cli import completion, output, pages
from instep.cli import help as help_pages
from instep.cli.options import GLOBAL, AsJson, Config, Debug
from instep.document.showing import counted
from instep_lab import chooser
from instep_lab.chooser import SettingPart

if TYPE_CHECKING:
    from instep_lab.chooser import ChooserAnswers, ChooserQuestion, SettingsChoice
    from instep_lab.claim import Claim, ClaimResult
    from instep_lab.report.contents import LabReport, Section

STATEMENT_SHOWN = 72
REASON_SHOWN = 90
REPORT_FILE = Path("lab-report.html")

app = typer.Typer(
    name="lab",
    no_args_is_help=True,
    cls=help_pages.GroupedCommands,
    rich_markup_mode=None,
    help="Test common claims about Kafka on real servers.",
)


def _complete_claims(_context: typer.Context, incomplete: str) -> list[str]:
    from instep_lab import claims

    return completion.matching(incomplete, lambda: claims.ALL)


def _complete_runs(_context: typer.Context, incomplete: str) -> list[str]:
    from instep_lab import store

    return completion.matching(incomplete, lambda: [run.name for run in store.runs(store.folder())])


def _complete_outdated(_context: typer.Context, incomplete: str) -> list[str]:
    from instep_lab import outdated

    return completion.matching(incomplete, lambda: outdated.ALL)


Claims = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CLAIM]...",
        help="Ids such as order-1, or families such as order. Default: all.",
        autocompletion=_complete_claims,
    ),
]
RunId = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="ID",
        help="The id of a run. Default: the newest.",
        autocompletion=_complete_runs,
    ),
]


@app.command("list")
def list_claims(ids: Claims = None, as_json: AsJson = False, _debug: Debug = False) -> None:
    """List claims: what each needs, its rules of `instep vet`, and its newest verdict."""
    from instep_lab import claim, claims

    selected = claim.select(claims.ALL, ids or [])
    run, verdicts = _newest()
    if as_json:
        output.print_json(
            {
                "run": run,
                "claims": [{**_about(one), "verdict": verdicts.get(one.id)} for one in selected],
            }
        )
        return
    if selected:
        head = ("CLAIM", "VERDICT", "BROKERS", "HARMLESS", "STATEMENT", "RULES")
        typer.echo(
            output.table(head, [_listed(one, verdicts, in_full=bool(ids)) for one in selected])
        )
    source = "no runs yet, start one: instep lab run"
    if run:
        source = f"verdicts of run {run}"
    output.say(f"{counted(len(selected), 'claim')}; {source}")


@app.command("run")
def run_claims(
    ids: Claims = None,
    tier: Annotated[
        str | None,
        typer.Option(
            help="quick (default): all claims in 10 minutes; full: more rounds, kills and records."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Seed of the random workload. Default: 1.",
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of seeds to run with; report which verdicts differ. Default: 1.",
        ),
    ] = 1,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESSES",
            help="Test the harmless claims on your cluster, in topics that the lab creates.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    run: RunId = None,
    into: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The folder to store the run in.")
    ] = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Test claims on brokers that the lab starts, or harmless claims on your cluster."""
    from instep_lab import claims, lab, store
    from instep_lab.claim import Tier

    if tier is not None and tier not in list(Tier):
        raise errors.SettingsError(f"unknown tier {tier!r}", f"the tiers are {', '.join(Tier)}")
    if run is not None and not resume:
        raise errors.SettingsError("--run names the run to resume", "add --resume, or omit --run")
    if resume and (ids or bootstrap or into or tier or seed is not None or seeds > 1):
        raise errors.SettingsError(
            "a resumed run already has its claims, tier, seed, cluster and folder",
            "use --resume and --run without other options",
        )
    kept = into or store.folder()
    if resume:
        folder = store.find(kept, run) if run else store.interrupted(kept)
        bootstrap = store.read_run(folder).cluster
    selected = lab.select_for_cluster(claims.ALL, ids or [], bootstrap)
    given = _user_cluster(bootstrap)
    if not resume and not ids and len(selected) < len(claims.ALL):
        left_out = counted(len(claims.ALL) - len(selected), "claim")
        output.say(
            f"skipping {left_out} that only run on brokers started by the lab"
            " (omit --bootstrap to test them)"
        )
    first = 1 if seed is None else seed
    by_seed: dict[int, dict[str, ClaimResult]] = {}
    for number in range(first, first + seeds):
        if not resume:
            folder = lab.prepare(
                claims.ALL,
                ids or [],
                tier=Tier(tier or Tier.QUICK),
                seed=number,
                into=kept,
                cluster=bootstrap,
            )
        if seeds > 1:
            output.say(f"run {number - first + 1} of {seeds}, seed {number}: {folder.name}")
        by_seed[number] = _test_claims(folder, given, folder if into else folder.name)
    if seeds > 1:
        _show_seeds(by_seed, as_json=as_json)
        return
    _show_results(folder, by_seed[first], as_json=as_json)


def _test_claims(
    folder: Path, given: tuple[settings.Kafka, str] | None, run_name: Path | str
) -> dict[str, ClaimResult]:
    """Test the remaining claims of a run, and show the progress."""
    from instep_lab import claims, lab

    try:
        with terminal.ProgressLine(sys.stderr) as line:

            def say(text: str) -> None:
                line.clear()
                output.say(text)

            def advance(claim: str, done: int, total: int) -> None:
                line.update(f"testing {claim}", done, total, "claims")

            return lab.Lab(
                folder, claims.ALL, given=given, say=say, advance=advance, two_at_once=True
            ).run()
    except SystemExit:
        output.say(f"interrupted; continue with: instep lab run --resume --run {run_name}")
        raise


def _show_seeds(by_seed: Mapping[int, Mapping[str, ClaimResult]], *, as_json: bool) -> None:
    """Show the claims whose verdicts differ between seeds; exit with 1 if there are any."""
    from instep_lab import seeds

    found = seeds.compare(by_seed)
    differing = [one for one in found if not one.same]
    if as_json:
        output.print_json(
            {"claims": [{**dataclasses.asdict(one), "same": one.same} for one in found]}
        )
    else:
        for one in differing:
            typer.echo(f"{output.cell(one.claim)}: {_by_seed(one.verdicts)}")
            for title, outcomes in one.parts.items():
                typer.echo(f"    {output.cell(title)}: {_by_seed(outcomes)}")
        output.say(
            f"{counted(len(by_seed), 'run')}: {counted(len(found) - len(differing), 'claim')} with"
            f" the same verdict in each, {len(differing)} without"
        )
    if differing:
        raise typer.Exit(1)


def _by_seed(found: Mapping[str, Sequence[int]]) -> str:
    return "; ".join(
        f"{word} with seed {', '.join(map(str, numbers))}" for word, numbers in found.items()
    )


def _show_results(folder: Path, results: Mapping[str, ClaimResult], *, as_json: bool) -> None:
    """Show the results of a run; exit with 1 if a verdict is INCONCLUSIVE."""
    from instep_lab.verdict import ClaimVerdict

    if as_json:
        output.print_json({"claims": list(results.values())})
    else:
        _show_run(_report(str(folder)), as_json=False)
    if any(one.verdict is ClaimVerdict.INCONCLUSIVE for one in results.values()):
        raise typer.Exit(1)


@app.command("show")
def show(
    id_: Annotated[
        str | None,
        typer.Argument(
            metavar="[CLAIM]",
            help="A claim or a family. Default: an overview of the run.",
            autocompletion=_complete_claims,
        ),
    ] = None,
    run: RunId = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Show the results of a run: an overview, or all details of one claim."""
    from instep_lab import claims
    from instep_lab.report import contents

    report = _report(run)
    if id_ is None:
        _show_run(report, as_json)
        return
    sections = contents.select(report, claims.ALL, id_)
    if as_json:
        output.print_json(
            {"run": report.run, "claims": [_details(section) for section in sections]}
        )
        return
    typer.echo("\n\n".join("\n".join(_describe(section)) for section in sections))


@app.command("report")
def write_report(
    run: RunId = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write.")] = REPORT_FILE,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is not such a report.")
    ] = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Write a run as one self-contained HTML page, with numbers and plots for each claim."""
    from instep_lab.report import page

    report = _report(run)
    pages.write(page.KIND, lambda: page.render(report), out, force=force)
    if as_json:
        file = str(out.absolute())
        output.print_json({"file": file, "run": report.run.id, "counts": report.counts})
    else:
        output.say(f"{out.absolute()}: run {report.run.id}, {_counted(report)}")


@app.command("runs")
def list_runs(as_json: AsJson = False, _debug: Debug = False) -> None:
    """List the stored runs, oldest first."""
    from instep_lab import store

    kept = store.folder()
    found = [_overview(run) for run in store.runs(kept)]
    if as_json:
        output.print_json({"folder": str(kept), "runs": found})
        return
    if found:
        head = ("RUN", "BEGUN", "TIER", "SEED", "CLAIMS", "ENDED", "DECIDED", "CLUSTER")
        typer.echo(output.table(head, [[one[key.lower()] for key in head] for one in found]))
    for one in found:
        if one["error"]:
            output.say(f"instep: {one['error']}")
    output.say(f"{counted(len(found), 'run')} in {kept}")


def _answers(name: str) -> Any:
    """Return the option that answers one of the chooser's questions."""
    return typer.Option(
        f"--{name}",
        metavar="ANSWER",
        help=_question_help(name),
        autocompletion=_complete_answers(name),
    )


def _question_help(name: str) -> str:
    question = _question(name)
    return f"{question.text} {', '.join(answer.value for answer in question.answers)}."


def _question(name: str) -> ChooserQuestion:
    [found] = [one for one in chooser.QUESTIONS if one.name == name]
    return found


def _complete_answers(name: str) -> Callable[[typer.Context, str], list[str]]:
    def complete(_context: typer.Context, incomplete: str) -> list[str]:
        words = [answer.value for answer in _question(name).answers]
        return completion.matching(incomplete, lambda: words)

    return complete


@app.command("choose")
def choose_settings(
    loss: Annotated[str | None, _answers("loss")] = None,
    repeats: Annotated[str | None, _answers("repeats")] = None,
    order: Annotated[str | None, _answers("order")] = None,
    away: Annotated[str | None, _answers("away")] = None,
    client: Annotated[str | None, _answers("client")] = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Choose settings by five questions, each line with the claims that show why.

    On a terminal, the command asks the questions that have no answer yet.
    """
    given = {"loss": loss, "repeats": repeats, "order": order, "away": away, "client": client}
    for question in chooser.QUESTIONS:
        if given[question.name] is not None:
            chooser.read_answer(question, given[question.name] or "")
    words = {
        question.name: given[question.name] or _ask(question) for question in chooser.QUESTIONS
    }
    answers = chooser.parse(words)
    choice = chooser.choose(answers)
    if as_json:
        output.print_json({"answers": words, **dataclasses.asdict(choice)})
        return
    typer.echo("\n".join(_chosen(answers, choice)))
    for warning in choice.warnings:
        output.say(f"note: {warning}")


def _ask(question: ChooserQuestion) -> str:
    """Ask a question on the terminal; return an empty answer if there is no terminal."""
    if not sys.stdin.isatty():
        return ""
    output.say(question.text)
    for answer, text in question.answers.items():
        output.say(f"  {answer.value:12}{text}")
    while True:
        word = str(typer.prompt(question.name, err=True)).strip()
        try:
            return chooser.read_answer(question, word).value
        except errors.SettingsError as error:
            output.say(f"{error.what}")


def _chosen(answers: ChooserAnswers, choice: SettingsChoice) -> Iterator[str]:
    """Yield the settings as the lines of properties files; comments name the claims."""
    heads = {
        SettingPart.PRODUCER: f", {answers.client}",
        SettingPart.CONSUMER: f", {answers.client}",
        SettingPart.TOPIC: "; options (--) and settings for kafka-topics.sh --create",
    }
    for part in SettingPart:
        yield f"# {part}{heads.get(part, '')}"
        for one in choice.settings:
            if one.part is part:
                yield f"# {one.reason} ({', '.join(one.claims)})"
                yield f"{one.name}={one.value}"
        yield ""
    yield "# in the program"
    for rule in choice.program:
        yield f"# {rule.text} ({', '.join(rule.claims)})"


@app.command("outdated")
def list_outdated(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...",
            help="Statements such as acks-default. Default: all.",
            autocompletion=_complete_outdated,
        ),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESSES",
            help="Ask a cluster for the settings that the statements are about.",
        ),
    ] = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """List statements about Kafka that were true once, and what is true today."""
    from instep_lab import outdated, sources

    selected = outdated.select(ids or [])
    found = _broker_settings(bootstrap) if bootstrap else {}
    answers = {
        one.id: {name: outdated.answer(name, found) for name in one.asks if bootstrap}
        for one in selected
    }
    if as_json:
        output.print_json(
            {
                "statements": [
                    {**dataclasses.asdict(one), "settings": answers[one.id]} for one in selected
                ]
            }
        )
        return
    for one in selected:
        typer.echo(f"{output.cell(one.id)}: outdated since {one.since}\n")
        lines = [*_field("statement", one.statement), *_field("today", one.today)]
        for source in one.sources:
            lines += _field("source", f"{source} {sources.ALL[source].url}")
        for name, value in answers[one.id].items():
            lines += _field("setting", f"{name}  {value}")
        typer.echo("\n".join([*lines, *_field("shown by", one.shown_by), ""]))
    output.say(counted(len(selected), "statement"))


def _broker_settings(bootstrap: str) -> dict[str, str | None]:
    """Return the settings of one broker of a cluster."""
    from instep.kafka import configs, layout
    from instep.kafka.connection import Cluster

    with Cluster(settings.load(GLOBAL.config).kafka, bootstrap) as cluster:
        node = min(layout.read(cluster).brokers)
        found = configs.of_brokers(cluster, [node])[node]
    return {name: one.value for name, one in found.items()}


def _user_cluster(bootstrap: str | None) -> tuple[settings.Kafka, str] | None:
    """Return the user's cluster, with the security of the settings file, once it has answered."""
    if bootstrap is None:
        return None
    from instep.kafka import layout
    from instep.kafka.connection import Cluster

    kafka = settings.load(GLOBAL.config).kafka
    with Cluster(kafka, bootstrap) as cluster:
        layout.read(cluster)
    return kafka, bootstrap


def _report(run: str | None) -> LabReport:
    from instep_lab import claims, store
    from instep_lab.report import contents

    return contents.gather(store.find(store.folder(), run), claims.ALL)


def _newest() -> tuple[str | None, dict[str, str]]:
    """Return the newest run and its verdicts; report a damaged run and go on without."""
    from instep_lab import store

    runs = store.runs(store.folder())
    if not runs:
        return None, {}
    try:
        return runs[-1].name, {
            id_: one.verdict.value for id_, one in store.read_results(runs[-1]).items()
        }
    except errors.InstepError as error:
        output.say(f"instep: {error.what}")
        return runs[-1].name, {}


def _overview(run: Path) -> dict[str, Any]:
    from instep_lab import store
    from instep_lab.verdict import ClaimVerdict

    shown: dict[str, Any] = dict.fromkeys(
        ("begun", "tier", "seed", "claims", "ended", "decided", "cluster", "error")
    )
    try:
        request, results = store.read_run(run), store.read_results(run)
    except errors.InstepError as error:
        return {"run": run.name, **shown, "error": error.what}
    return {
        "run": run.name,
        **shown,
        "begun": request.begun_at,
        "tier": request.tier,
        "seed": request.seed,
        "claims": len(request.claims),
        "ended": sum(one.ended for one in results.values()),
        "decided": sum(one.verdict is not ClaimVerdict.INCONCLUSIVE for one in results.values()),
        "cluster": request.cluster or "own",
    }


def _about(claim: Claim) -> dict[str, Any]:
    needs = {"brokers": claim.brokers, "harmless": claim.harmless, "before": claim.before}
    return {"id": claim.id, **msgspec.structs.asdict(claim.texts), **needs}


def _listed(claim: Claim, verdicts: Mapping[str, str], *, in_full: bool) -> Sequence[Any]:
    statement = claim.statement
    if not in_full:
        statement = output.shortened(statement, STATEMENT_SHOWN)
    harmless = "yes" if claim.harmless else "no"
    return (
        claim.id,
        verdicts.get(claim.id, "not run"),
        claim.brokers,
        harmless,
        statement,
        " ".join(claim.texts.rules),
    )


def _show_run(report: LabReport, as_json: bool) -> None:
    if as_json:
        keys = ("id", "statement", "verdict", "because")
        claims = [{key: getattr(section, key) for key in keys} for section in report.sections]
        output.print_json({"run": report.run, "counts": report.counts, "claims": claims})
        return
    width = max(map(len, report.facts)) + 2
    for name, value in report.facts.items():
        typer.echo(output.cell(name).ljust(width) + output.cell(value))
    rows = [
        (one.id, one.verdict, output.shortened(one.because, REASON_SHOWN))
        for one in report.sections
    ]
    typer.echo("\n" + output.table(("CLAIM", "VERDICT", "REASON"), rows))
    output.say(f"{_counted(report)}; details: instep lab show CLAIM")


def _counted(report: LabReport) -> str:
    verdicts = ", ".join(f"{count} {word}" for word, count in report.counts.items())
    if not verdicts:
        return "no claims"
    return f"{counted(len(report.sections), 'claim')}: {verdicts}"


def _details(section: Section) -> dict[str, Any]:
    about = {"id": section.id, "statement": section.statement}
    if section.claim:
        about = _about(section.claim)
    kept = {"settings": section.settings, "timeline": section.timeline, "command": section.command}
    return {
        **about,
        "verdict": section.verdict,
        "because": section.because,
        "result": section.result,
        **kept,
    }


def _describe(section: Section) -> list[str]:
    """Return all details of one claim, as lines."""
    from instep.report import plots
    from instep_lab.report import contents

    texts, result = section.texts, section.result
    lines = [
        f"{output.cell(section.id)}: {section.verdict}",
        "",
        *_field("statement", section.statement),
    ]
    for name, text in (("method", texts.method), ("scope", texts.scope)):
        if text:
            lines += _field(name, text)
    if result:
        lines += _field("reason", section.because)
        incomplete = "" if result.ended else ", did not end"
        lines += _field("started", f"{result.begun_at}, {result.seconds:.1f} s{incomplete}")
        lines.append("")
        for part in contents.parts(result):
            lines += [
                f"{contents.outcome_word(part):14}{part.role}: {output.cell(part.title)}",
                f"{'':14}{output.cell(part.evidence)}",
            ]
        for table in [*result.tables, *map(plots.tabulated, result.plots)]:
            lines += ["", output.titled_table(table)]
        for example in result.examples:
            lines += ["", *_field("example", example.title)]
            lines += [output.cell(line) for line in contents.example_lines(example)]
    if texts.why:
        lines += ["", *_field("why", texts.why)]
    for source in section.sources:
        lines += _field("source", f"{source.id} {source.url}".strip())
    if texts.advice:
        lines += ["", *_field("advice", texts.advice)]
        lines += _field("rules", " ".join(texts.rules) or "none")
    lines.append("")
    for scenario, client in contents.settings(section):
        lines += _field("settings", f"{scenario}: {client}")
    for step in contents.timeline(section):
        lines += _field("timeline", step)
    return [*lines, *_field("repeat", section.command)]


def _field(name: str, text: str) -> list[str]:
    return [f"{name:11}{output.cell(text)}"]
