"""Claims about other queues.

All use one measurement, which is made once per run and stored in the folder of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from instep import errors
from instep.report.tables import Cell, PlotKind
from instep_lab.claim import experiment
from instep_lab.history import ClientOperation
from instep_lab.queues import measuring
from instep_lab.queues.measuring import Loss, Rate, Speed
from instep_lab.queues.system import System
from instep_lab.queues.systems import KINDS, Servers
from instep_lab.trial import Scenario, Trial

MEASURED_FILE = "queues.json"
LIST, CLASSIC, ZERO = "redis-list", "rabbitmq-classic", "zeromq"
SMALL = (100, 1_000)
LARGE = (100_000, 1_000_000)
MUCH_FASTER, UNBEARABLY_SLOW = 2.0, 0.5
UNSTEADY = 2.0
MODES = {True: "durable", False: "not durable"}
PYTHON = (
    "All systems are used through Python clients, with one connection and one thread in each"
    " direction. Kafka acknowledges without syncing to disk, which is its default, and relies on"
    " replicas; the others, in durable use, sync to disk."
)
NOT_THE_SPEED = (
    "These are the rates of one Python client on one machine: choose by what must survive and who"
    " must read it again."
)

RateChoice = Callable[[measuring.QueueRate], Rate]
Cells = Mapping[tuple[str, bool, int], measuring.QueueRate]


class QueueMeasurements(msgspec.Struct, frozen=True):
    """The measurements of every system, and why some are missing."""

    speeds: list[Speed]
    missing: dict[str, str]

    @property
    def cells(self) -> Cells:
        return {
            (one.system, one.durable, one.size): one for one in measuring.summarise(self.speeds)
        }


@experiment(
    "queue-1",
    statement=(
        "Redis enqueues small messages faster than RabbitMQ, and is unbearably slow above 10 KB"
    ),
    method=(
        "Enqueue and dequeue the same messages of 100 B to 1 MB with Kafka, Redis, RabbitMQ, "
        "ZeroMQ and ActiveMQ, durable (acknowledged once stored) and not, in turn. Compare Redis "
        "lists with RabbitMQ's classic queues: faster means a higher median, unbearably slow "
        f"means less than half of RabbitMQ's rate. {PYTHON}"
    ),
    advice=(
        "Message size is no reason to avoid Redis; whether its response means that a message is "
        f"stored may be one. {NOT_THE_SPEED}"
    ),
    harmless=False,
)
def redis_enqueue_rate(trial: Trial) -> None:
    measured = _measure(trial)
    _show(trial, measured, "Enqueue", lambda cell: cell.enqueue)
    for durable, mode in MODES.items():
        ratios = _ratios(measured, lambda cell: cell.enqueue, durable)
        trial.statement(
            f"{mode}, Redis enqueues messages of up to 1 kB faster",
            _all(ratios, SMALL, lambda ratio: ratio > 1),
            _compared(measured, ratios, SMALL),
        )
        trial.statement(
            f"{mode}, Redis is unbearably slow above 10 kB",
            _all(ratios, LARGE, lambda ratio: ratio < UNBEARABLY_SLOW),
            _compared(measured, ratios, LARGE),
        )
    _control(trial, measured)


@experiment(
    "queue-2",
    statement="Redis dequeues much faster than RabbitMQ at any size",
    method=(
        "The same measurement as for queue-1. Much faster means at least twice the median of "
        f"RabbitMQ's classic queues, durable and not. {PYTHON}"
    ),
    advice=(
        "Do not choose a queue by its read rate: both are faster than most programs that process "
        f"what they read. {NOT_THE_SPEED}"
    ),
    harmless=False,
)
def redis_dequeue_rate(trial: Trial) -> None:
    measured = _measure(trial)
    _show(trial, measured, "Dequeue", lambda cell: cell.dequeue)
    for durable, mode in MODES.items():
        ratios = _ratios(measured, lambda cell: cell.dequeue, durable)
        trial.statement(
            f"{mode}, Redis dequeues much faster at every size",
            _all(ratios, measuring.COUNTS, lambda ratio: ratio >= MUCH_FASTER),
            _compared(measured, ratios, measuring.COUNTS),
        )
    _control(trial, measured)


@experiment(
    "queue-3",
    statement=(
        "ZeroMQ is the fastest and stores nothing: queued messages are lost when a process dies"
    ),
    method=(
        "The same measurement as for queue-1: the time to enqueue and dequeue. Then enqueue to "
        "each system, kill with -9 the process that holds the messages (the server, or the "
        "sender for ZeroMQ), start it again and count what can still be read. A killed process "
        f"is not a power failure: data that the operating system had accepted survives. {PYTHON}"
    ),
    advice=(
        "Use ZeroMQ between processes that may lose messages in transit. Where a message must "
        "survive, use a durable queue and wait for its acknowledgement (Kafka: acks=all)."
    ),
    harmless=False,
)
def zeromq_rate_and_loss(trial: Trial) -> None:
    measured = _measure(trial)
    _show(trial, measured, "Enqueue and dequeue", lambda cell: cell.through)
    cells = measured.cells
    for size in measuring.COUNTS:
        _judge_fastest(trial, measured, cells, size)
    losses = _losses(trial)
    _show_losses(trial, losses, measured.missing)
    found = {(one.system, one.durable, one.killed): one for one in losses}
    dead, alive = (found.get((ZERO, False, killed)) for killed in (True, False))
    all_lost: bool | None = None
    if dead is not None:
        all_lost = dead.lost.count == dead.sent
    none_lost: bool | None = None
    if alive is not None:
        none_lost = not alive.lost
    trial.statement(
        "messages queued by ZeroMQ are lost with the sending process",
        all_lost,
        _loss_text(measured, dead),
    )
    trial.control(
        "without the kill, that process delivers all messages",
        none_lost,
        _loss_text(measured, alive),
    )
    kafka = found["kafka", True, True]
    trial.control(
        "Kafka with acks=all keeps all records that the killed broker had acknowledged",
        not kafka.lost,
        _loss_text(measured, kafka),
    )
    lossy = [f"{one.system}, {MODES[one.durable]}" for one in losses if not one.killed and one.lost]
    trial.control(
        "without a kill, no system loses messages",
        not lossy,
        ", ".join(lossy) or f"{len(losses) // 2} combinations of system and durability",
    )
    _control(trial, measured)


def _measure(trial: Trial) -> QueueMeasurements:
    """Return the speeds of all available systems; the first claim of a run measures them."""
    file = trial.run / MEASURED_FILE
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=QueueMeasurements)
    with Servers(trial.cluster.node(1)) as servers:
        systems, missing = _present(servers)
        trial.note(
            f"measuring {len(systems)} combinations of system and durability;"
            f" missing: {', '.join(missing) or 'none'}"
        )
        speeds = measuring.compare(
            systems,
            measuring.COUNTS,
            repetitions=trial.scaled(3, 9),
            seconds=trial.scaled(0.1, 1.0),
            seed=trial.seed,
            say=trial.note,
        )
    measured = QueueMeasurements(speeds, missing)
    # Renamed when complete: a run that is killed here must not leave half a file.
    written = file.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(measured))
    written.replace(file)
    return measured


def _present(servers: Servers) -> tuple[list[System], dict[str, str]]:
    """Return the systems whose server and client are installed, and remedies for the others."""
    found: list[System] = []
    missing: dict[str, str] = {}
    for kind in KINDS:
        try:
            found += [servers.system(kind.name, durable=durable) for durable in kind.durable]
        except errors.MissingPart as error:
            missing[kind.name] = f"{error.what}; {error.remedy}"
    return found, missing


def _losses(trial: Trial) -> list[Loss]:
    """Measure the losses of each system with a kill and, as the control, without."""
    found: list[Loss] = []
    with Servers(trial.cluster.node(1)) as servers:
        systems = _present(servers)[0]
        for killed in (True, False):
            end = "killed" if killed else "left alive"
            scenarios = {
                id(system): trial.scenario(f"{system.name}, {MODES[system.durable]}, {end}")
                for system in systems
            }

            def note(
                system: System,
                operation: ClientOperation,
                scenarios: Mapping[int, Scenario] = scenarios,
            ) -> None:
                scenarios[id(system)].note(operation)

            found += measuring.losses(
                systems, 1_000, trial.scaled(500, 5_000), killed=killed, note=note
            )
            if killed:
                trial.note("fault: killed every server and the sender, verified")
            else:
                trial.note("control: nothing was killed")
    return found


def _ratios(
    measured: QueueMeasurements, rate_of: RateChoice, durable: bool
) -> dict[int, float] | None:
    """Return the rate of Redis relative to RabbitMQ, by size; None if one of them is missing."""
    if measured.missing.keys() & {LIST, CLASSIC}:
        return None
    cells = measured.cells
    return {
        size: rate_of(cells[LIST, durable, size]).median
        / rate_of(cells[CLASSIC, durable, size]).median
        for size in measuring.COUNTS
    }


def _all(
    ratios: Mapping[int, float] | None, sizes: Iterable[int], holds: Callable[[float], bool]
) -> bool | None:
    """Return whether the ratios of these sizes all satisfy a condition; None if unknown."""
    if ratios is None:
        return None
    return all(holds(ratios[size]) for size in sizes)


def _judge_fastest(trial: Trial, measured: QueueMeasurements, cells: Cells, size: int) -> None:
    statement = f"ZeroMQ is the fastest at {_size(size)}"
    if measured.missing:
        trial.statement(statement, None, _missing(measured))
        return
    own = cells[ZERO, False, size].through.median
    others = [cell for (name, _, bytes_), cell in cells.items() if name != ZERO and bytes_ == size]
    best = max(others, key=lambda cell: cell.through.median)
    evidence = (
        f"{own / best.through.median:.1f} times the second, {best.system}, {MODES[best.durable]}"
    )
    trial.statement(statement, own > best.through.median, evidence)


def _show(trial: Trial, measured: QueueMeasurements, title: str, rate_of: RateChoice) -> None:
    """Add a table and, for each mode, a plot of messages per second over size."""
    cells = measured.cells
    rows: list[list[Cell]] = []
    for kind in KINDS:
        if kind.name in measured.missing:
            rows.append([kind.name, measured.missing[kind.name], *(None for _ in measuring.COUNTS)])
            continue
        for durable in kind.durable:
            rates = [rate_of(cells[kind.name, durable, size]) for size in measuring.COUNTS]
            rows.append([kind.name, MODES[durable], *(_rate(rate) for rate in rates)])
    sizes = [_size(size) for size in measuring.COUNTS]
    trial.table(
        f"{title}: messages/s, median (lowest to highest), and MB/s",
        ["system", "used", *sizes],
        rows,
    )
    for durable, mode in MODES.items():
        series: dict[str, list[tuple[Cell, float | None]]] = {
            kind.name: [
                (size, rate_of(cells[kind.name, durable, size]).median) for size in measuring.COUNTS
            ]
            for kind in KINDS
            if durable in kind.durable and kind.name not in measured.missing
        }
        trial.plot(
            f"{title}, {mode}",
            "bytes per message",
            "messages/s",
            series,
            PlotKind.LINES,
            log_x=True,
            log_y=True,
        )


def _show_losses(trial: Trial, losses: Iterable[Loss], missing: Mapping[str, str]) -> None:
    killed = [one for one in losses if one.killed]
    rows: list[list[Cell]] = [
        [one.system, MODES[one.durable], one.sent, one.lost.count, one.repeated.count]
        for one in killed
    ]
    rows += [[name, remedy, None, None, None] for name, remedy in missing.items()]
    trial.table(
        "Messages lost when the process that holds them is killed",
        ["system", "used", "sent", "lost", "repeated"],
        rows,
    )
    lost: list[tuple[Cell, float | None]] = [
        (f"{one.system}, {MODES[one.durable]}", float(one.lost.count)) for one in killed
    ]
    trial.plot("Lost by kill -9", "system", "messages", {"lost": lost})


def _control(trial: Trial, measured: QueueMeasurements) -> None:
    factor = measuring.unsteadiness(measured.cells.values())
    trial.control(
        "the machine was quiet enough to compare rates",
        factor <= UNSTEADY,
        f"within one measurement, the fastest round was {factor:.1f} times the slowest;"
        f" up to {UNSTEADY:g} is accepted",
    )
    unsound = sum(not one.sound for one in measured.speeds)
    messages = sum(one.count for one in measured.speeds)
    trial.control(
        "every measured message arrived exactly once",
        not unsound,
        f"{unsound} of {len(measured.speeds)} measurements failed, {messages:,} messages",
    )


def _compared(
    measured: QueueMeasurements, ratios: Mapping[int, float] | None, sizes: Iterable[int]
) -> str:
    if ratios is None:
        return _missing(measured)
    return "of RabbitMQ's rate " + ", ".join(
        f"{ratios[size]:.0%} at {_size(size)}" for size in sizes
    )


def _loss_text(measured: QueueMeasurements, loss: Loss | None) -> str:
    if loss is None:
        return _missing(measured)
    return f"{loss.lost.count} of {loss.sent} lost, {loss.repeated.count} repeated"


def _missing(measured: QueueMeasurements) -> str:
    return "; ".join(dict.fromkeys(measured.missing.values()))


def _rate(rate: Rate) -> str:
    return (
        f"{rate.median:,.0f} ({rate.lowest:,.0f} to {rate.highest:,.0f}), {rate.mb_per_s:,.1f} MB/s"
    )


def _size(size: int) -> str:
    if size >= 1_000_000:
        return f"{size // 1_000_000} MB"
    if size >= 1_000:
        return f"{size // 1_000} kB"
    return f"{size} B"
