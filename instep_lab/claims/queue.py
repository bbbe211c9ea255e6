"""Claims about other queues.

All use one measurement, which is made once per run and stored in the folder of the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import msgspec

from instep import errors
from instep.report.tables import Cell, PlotKind
from instep_lab import bounds, store
from instep_lab.claim import experiment
from instep_lab.claims import senders
from instep_lab.history import ClientOperation
from instep_lab.queues import measuring
from instep_lab.queues.measuring import Loss, Rate, Speed
from instep_lab.queues.system import System
from instep_lab.queues.systems import KINDS, Servers, SystemKind
from instep_lab.trial import Scenario, Trial

MEASURED_FILE = "queues.json"
LIST, CLASSIC, ZERO = "redis-list", "rabbitmq-classic", "zeromq"
KAFKA, ACTIVE = "kafka", "activemq"
SMALL = (100, 1_000)
LARGE = (100_000, 1_000_000)
UP_TO_10_KB = (100, 1_000, 10_000)
CLOSE = (1_000, 10_000)  # sizes at which Kafka is nearly as fast as ZeroMQ
UP_TO_100_KB = (*UP_TO_10_KB, 100_000)
LARGEST = (1_000_000,)
MUCH_FASTER = 3.0
# A user waits for a message and gives up: less than this many MB/s, or a tenth of RabbitMQ's rate.
UNBEARABLE_MB_PER_S, UNBEARABLE_SHARE = 1.0, 0.1
UNSTEADY = 2.0
LEAD = 1.25  # between none and this one, a lead may be chance
NEAR = 1.15  # a ratio that is this near to a bound, or nearer, may be on either side by chance
ATTEMPTS_MAX = 4
MODES = {True: "durable", False: "not durable"}
PYTHON = (
    "All systems are used from Python, with one connection and one thread in each"
    " direction. The table of systems has the releases, and what durable use means for each."
)
AGAIN = f"Sizes at which chance may decide are measured again, up to {ATTEMPTS_MAX} times."
SCOPE = (
    "The releases in the table of systems, one Python client and one server on one machine, which "
    "share its cores. In durable use Redis syncs to disk before it responds, as do ActiveMQ and "
    "RabbitMQ's quorum queues; Kafka leaves that to the operating system and relies on replicas. "
    "RabbitMQ's classic queues stopped calling fsync for large messages after 3.12 "
    "(rabbitmq-server#8507)."
)
SOURCES = ("rabbitmq-server#8507", "documentation: flush")
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
    releases: dict[str, str] = {}

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
        "lists with RabbitMQ's classic queues, by the best rounds: faster means a lead of a "
        f"quarter, unbearably slow means less than {UNBEARABLE_MB_PER_S:g} MB/s or less than a "
        f"tenth of RabbitMQ's rate. {AGAIN} {PYTHON}"
    ),
    advice=(
        "Message size is no reason to avoid Redis; whether its response means that a message is "
        f"stored may be one. {NOT_THE_SPEED}"
    ),
    why=(
        "Redis appends to a list in memory and, in durable use, to one file; RabbitMQ routes each "
        "message to the process of a queue. For small messages the work per message decides, for "
        "large ones copying and the disk, which are alike for both."
    ),
    scope=SCOPE,
    sources=SOURCES,
    harmless=False,
    alone=True,
)
def redis_enqueue_rate(trial: Trial) -> None:
    measured = _measure_undecided(trial, _measure(trial), _undecided_enqueue, (LIST, CLASSIC))
    _show(trial, measured, "Enqueue", lambda cell: cell.enqueue)
    for durable, mode in MODES.items():
        ratios = _ratios(measured, lambda cell: cell.enqueue, durable)
        trial.statement(
            f"{mode}, Redis enqueues messages of up to 1 kB faster",
            _all(ratios, SMALL, lambda ratio: senders.clearly_more(ratio, 1.0, 1.0, LEAD)),
            _compared(measured, ratios, SMALL),
        )
        trial.statement(
            f"{mode}, Redis is unbearably slow above 10 kB",
            _unbearable(measured, ratios, durable),
            f"{_compared(measured, ratios, LARGE)}{_mb_per_s(measured, ratios, durable)}",
        )
    _control(trial, measured)


@experiment(
    "queue-2",
    statement="Redis dequeues much faster than RabbitMQ at any size",
    method=(
        "The same measurement as for queue-1. Compare the best rounds with those of RabbitMQ's "
        f"classic queues, durable and not. Faster means at least {LEAD:g} times the rate, much "
        f"faster at least {MUCH_FASTER:g} times. {AGAIN} {PYTHON}"
    ),
    advice=(
        "Do not choose a queue by its read rate: Redis is about twice as fast here, and both are "
        f"faster than most programs that process what they read. {NOT_THE_SPEED}"
    ),
    why=(
        "A reader of Redis asks for a batch and gets it. RabbitMQ pushes messages ahead, so the "
        "client's parser is the limit, and pika is written in Python. In durable use both write "
        "for each message that is taken, Redis with an fsync."
    ),
    scope=SCOPE,
    sources=SOURCES,
    harmless=False,
    alone=True,
)
def redis_dequeue_rate(trial: Trial) -> None:
    measured = _measure_undecided(trial, _measure(trial), _undecided_dequeue, (LIST, CLASSIC))
    _show(trial, measured, "Dequeue", lambda cell: cell.dequeue)
    for durable, mode in MODES.items():
        ratios = _ratios(measured, lambda cell: cell.dequeue, durable)
        for sizes in (UP_TO_100_KB, LARGEST):
            named = f"{'up to ' if len(sizes) > 1 else ''}{_size(max(sizes))}"
            trial.statement(
                f"{mode}, Redis dequeues messages of {named} faster",
                _all(ratios, sizes, lambda ratio: _at_least(ratio, LEAD)),
                _compared(measured, ratios, sizes),
            )
        trial.statement(
            f"{mode}, Redis dequeues much faster, at least {MUCH_FASTER:g} times, at every size",
            _all(ratios, measuring.COUNTS, lambda ratio: _at_least(ratio, MUCH_FASTER)),
            _compared(measured, ratios, measuring.COUNTS),
        )
    _control(trial, measured)


def _undecided_enqueue(cells: Cells) -> list[int]:
    """Return the small sizes at which a lead of Redis may be chance."""
    ratios = [_relative(cells, lambda cell: cell.enqueue, durable) for durable in MODES]
    return [size for size in SMALL if any(1 <= one[size] < LEAD for one in ratios)]


def _undecided_more(cells: Cells) -> list[int]:
    """Return the sizes at which a lead of Kafka over ActiveMQ may be chance."""
    ratios = [
        _relative(cells, lambda cell: cell.through, durable, KAFKA, ACTIVE) for durable in MODES
    ]
    return [size for size in measuring.COUNTS if any(_near(one[size], LEAD) for one in ratios)]


def _undecided_dequeue(cells: Cells) -> list[int]:
    """Return the sizes whose ratio is so near a bound that chance may decide a statement.

    A statement about all sizes is decided by the smallest ratio.
    """
    undecided: set[int] = set()
    for durable in MODES:
        ratios = _relative(cells, lambda cell: cell.dequeue, durable)
        undecided.update(size for size, ratio in ratios.items() if _near(ratio, LEAD))
        smallest = min(ratios, key=ratios.__getitem__)
        if _near(ratios[smallest], MUCH_FASTER):
            undecided.add(smallest)
    return sorted(undecided)


def _near(ratio: float, bound: float) -> bool:
    return bound / NEAR < ratio < bound * NEAR


def _at_least(ratio: float, bound: float) -> bool | None:
    """Return whether a ratio reaches a bound; None if chance may decide it."""
    return None if _near(ratio, bound) else ratio >= bound


@experiment(
    "queue-3",
    statement=(
        "ZeroMQ is the fastest and stores nothing: queued messages are lost when a process dies"
    ),
    method=(
        "The same measurement as for queue-1: the time to enqueue and dequeue. The best rounds "
        "are compared. At 1 kB and 10 kB Kafka comes near, so the question there is whether "
        f"another system is clearly faster, by a quarter. {AGAIN} Then enqueue "
        "to each system, kill with -9 the process that holds the messages (the server, or the "
        "sender for ZeroMQ), start it again and count what can still be read. A killed process "
        f"is not a power failure: data that the operating system had accepted survives. {PYTHON}"
    ),
    advice=(
        "Use ZeroMQ between processes that may lose messages in transit. Where a message must "
        "survive, use a durable queue and wait for its acknowledgement (Kafka: acks=all)."
    ),
    why=(
        "ZeroMQ is a library without a server: a message goes from the memory of one process to "
        "that of the other, and nothing is written or acknowledged. Until it is received it "
        "exists only there. With a server, every byte goes through one process more, which reads "
        "it from one connection and writes it to another. At 100 kB and 1 MB this copying is most "
        "of the work, so ZeroMQ leads there as well."
    ),
    scope=SCOPE,
    sources=SOURCES,
    harmless=False,
    alone=True,
)
def zeromq_rate_and_loss(trial: Trial) -> None:
    measured = _measure_undecided(trial, _measure(trial), _undecided_fastest)
    _show(trial, measured, "Enqueue and dequeue", lambda cell: cell.through)
    for size in measuring.COUNTS:
        relation = "no other system is clearly faster" if size in CLOSE else "ZeroMQ is the fastest"
        statement = f"{relation} at {_size(size)}"
        if measured.missing:
            trial.statement(statement, None, _missing(measured))
            continue
        fastest, evidence = _compare_fastest(measured.cells, size)
        trial.statement(statement, fastest, evidence)
    losses = _losses(trial)
    _show_losses(trial, losses, measured.missing)
    found = {(one.system, one.durable, one.killed): one for one in losses}
    dead, alive = (found.get((ZERO, False, killed)) for killed in (True, False))
    kills = [dead.lost.count == dead.sent] if dead else []
    kills += _more_zeromq_kills(trial, measured)
    all_lost: bool | None = all(kills) if kills else None
    all_lost_kills = bounds.describe(sum(kills), len(kills), "kill")
    none_lost: bool | None = None
    if alive is not None:
        none_lost = not alive.lost
    trial.statement(
        "messages queued by ZeroMQ are lost with the sending process",
        all_lost,
        f"{_loss_text(measured, dead)}; all lost in {all_lost_kills}",
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


@experiment(
    "queue-4",
    statement="Kafka is lightweight: it handles more messages per second than ActiveMQ",
    method=(
        "The same measurement as for queue-1: the time to enqueue and dequeue. The best rounds are "
        "compared. ActiveMQ gets its messages in batches too: the lab writes and parses STOMP "
        "frames a batch at a time, and in durable use one transaction covers a batch, so that "
        "neither a slow client library nor a response for each message decides. More means at "
        f"least {LEAD:g} times as many. {AGAIN} {PYTHON}"
    ),
    advice=(
        "Expect Kafka to handle more messages on one connection, above all small ones. By how "
        "much depends on the client, the protocol and the durability: measure your own. Ask what "
        "else you need: ActiveMQ delivers single messages, with priorities, selectors and delays. "
        f"{NOT_THE_SPEED}"
    ),
    why=(
        "Kafka's clients send and fetch batches, and the broker appends a batch to a file without "
        "looking at its messages. ActiveMQ parses, stores, delivers and removes each message on "
        "its own; in durable use it also syncs each transaction to disk, which Kafka does not. "
        "With large messages copying is most of the work, so the difference is smaller."
    ),
    scope=(
        "ActiveMQ Classic 6.3 over STOMP, which it parses as text, on one connection. Its own "
        "protocol OpenWire with the Java client, and several connections, were not measured and "
        f"may be faster: the ratios are not those of the brokers alone. {SCOPE}"
    ),
    sources=SOURCES,
    harmless=False,
    alone=True,
)
def activemq_rate(trial: Trial) -> None:
    measured = _measure_undecided(trial, _measure(trial), _undecided_more, (KAFKA, ACTIVE))
    _show(trial, measured, "Enqueue and dequeue", lambda cell: cell.through)
    missing = measured.missing.get(ACTIVE)
    for durable, mode in MODES.items():
        ratios: dict[int, float] = {}
        if not missing:
            ratios = _relative(measured.cells, lambda cell: cell.through, durable, KAFKA, ACTIVE)
        for sizes, named in ((UP_TO_10_KB, "up to 10 kB"), (LARGE, "100 kB and 1 MB")):
            shown = (f"{ratios[size]:.1f} times at {_size(size)}" for size in sizes if ratios)
            trial.statement(
                f"{mode}, Kafka handles more messages of {named}",
                _all(ratios or None, sizes, lambda ratio: _at_least(ratio, LEAD)),
                missing or ", ".join(shown),
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
        releases = {}
        for system in systems:
            with closing(system.open(trial.name("release"))) as queue:
                releases[system.name] = queue.release()
    measured = QueueMeasurements(speeds, missing, releases)
    others = ", ".join(text for name, text in releases.items() if name != "kafka")
    store.add_releases(
        trial.run, dict(one.rsplit(" ", 1) for one in others.split(", ") if " " in one)
    )
    # Renamed when complete: a run that is killed here must not leave half a file.
    written = file.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(measured))
    written.replace(file)
    return measured


def _present(servers: Servers, names: Sequence[str] = ()) -> tuple[list[System], dict[str, str]]:
    """Return the systems whose server and client are installed, and remedies for the others.

    With `names`, only these.
    """
    found: list[System] = []
    missing: dict[str, str] = {}

    def start(kinds: Iterable[SystemKind]) -> tuple[list[System], dict[str, str]]:
        started, remedies = list[System](), dict[str, str]()
        for kind in kinds:
            try:
                started += [servers.system(kind.name, durable=durable) for durable in kind.durable]
            except errors.MissingPart as error:
                remedies[kind.name] = f"{error.what}; {error.remedy}"
        return started, remedies

    by_server: dict[str, list[SystemKind]] = defaultdict(list)
    for kind in KINDS:
        if not names or kind.name in names:
            by_server[kind.name.partition("-")[0]].append(kind)
    # At the same time: each takes seconds to start, and mostly waits.
    with ThreadPoolExecutor(len(by_server)) as pool:
        for started, remedies in pool.map(start, by_server.values()):
            found += started
            missing |= remedies
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


def _more_zeromq_kills(trial: Trial, measured: QueueMeasurements) -> list[bool]:
    """Kill more senders in the full tier; return whether each kill lost all messages."""
    if ZERO in measured.missing:
        return []
    lost: list[bool] = []
    with Servers(trial.cluster.node(1)) as servers:
        for _ in range(trial.scaled(0, 29)):
            count = trial.random.randrange(50, 500)
            [found] = measuring.losses([servers.system(ZERO, durable=False)], 1_000, count)
            lost.append(found.lost.count == found.sent)
    return lost


def _ratios(
    measured: QueueMeasurements, rate_of: RateChoice, durable: bool
) -> dict[int, float] | None:
    """Return the best rate of Redis relative to RabbitMQ's; None if one of them is missing."""
    if measured.missing.keys() & {LIST, CLASSIC}:
        return None
    return _relative(measured.cells, rate_of, durable)


def _relative(
    cells: Cells, rate_of: RateChoice, durable: bool, this: str = LIST, that: str = CLASSIC
) -> dict[int, float]:
    """Return the best rate of a system relative to that of another one, by size."""
    return {
        size: rate_of(cells[this, durable, size]).highest
        / rate_of(cells[that, durable, size]).highest
        for size in measuring.COUNTS
    }


def _all(
    ratios: Mapping[int, float] | None, sizes: Iterable[int], holds: Callable[[float], bool | None]
) -> bool | None:
    """Return whether the ratios of these sizes all satisfy a condition; None if unknown."""
    if ratios is None:
        return None
    found = [holds(ratios[size]) for size in sizes]
    if False in found:
        return False
    return None if None in found else True


def _unbearable(
    measured: QueueMeasurements, ratios: Mapping[int, float] | None, durable: bool
) -> bool | None:
    """Return whether Redis is unbearably slow with large messages; None if unknown."""
    if ratios is None:
        return None
    cells = measured.cells
    return all(
        cells[LIST, durable, size].enqueue.mb_per_s < UNBEARABLE_MB_PER_S
        or ratios[size] < UNBEARABLE_SHARE
        for size in LARGE
    )


def _mb_per_s(
    measured: QueueMeasurements, ratios: Mapping[int, float] | None, durable: bool
) -> str:
    if ratios is None:
        return ""
    rates = (measured.cells[LIST, durable, size].enqueue.mb_per_s for size in LARGE)
    return f": {', '.join(f'{rate:,.0f} MB/s' for rate in rates)}"


def _measure_undecided(
    trial: Trial,
    measured: QueueMeasurements,
    undecided: Callable[[Cells], list[int]],
    names: Sequence[str] = (),
) -> QueueMeasurements:
    """Measure again, a few times, the sizes at which chance may decide; all systems or these.

    Nothing is measured again if one of these systems is missing.
    """
    missing = measured.missing.keys() & set(names or measured.missing)
    if missing or not ATTEMPTS_MAX or not undecided(measured.cells):
        return measured
    with Servers(trial.cluster.node(1)) as servers:
        systems, _ = _present(servers, names)
        for number in range(ATTEMPTS_MAX):
            sizes = undecided(measured.cells)
            if not sizes:
                break
            trial.note(f"undecided: {', '.join(map(_size, sizes))}; measuring again")
            speeds = measuring.compare(
                systems,
                {size: measuring.COUNTS[size] for size in sizes},
                repetitions=3,
                seconds=0.3,
                seed=trial.seed + number,
                say=trial.note,
            )
            measured = msgspec.structs.replace(measured, speeds=[*measured.speeds, *speeds])
    return measured


def _undecided_fastest(cells: Cells) -> list[int]:
    """Return the sizes at which it is not decided who is the fastest."""
    return [size for size in measuring.COUNTS if _compare_fastest(cells, size)[0] is None]


def _compare_fastest(cells: Cells, size: int) -> tuple[bool | None, str]:
    """Return whether ZeroMQ is the fastest at a size, and the evidence, by the best rounds.

    At the sizes in CLOSE, return whether no other system is clearly faster.
    """
    own = cells[ZERO, False, size].through.highest
    others = [cell for (name, _, bytes_), cell in cells.items() if name != ZERO and bytes_ == size]
    best = max(others, key=lambda cell: cell.through.highest)
    least = 1 / LEAD if size in CLOSE else LEAD
    hardly = least / NEAR if size in CLOSE else 1.0
    fastest = senders.clearly_more(own, best.through.highest, hardly, least)
    ratio = own / best.through.highest
    return fastest, f"{ratio:.1f} times the best other, {best.system}, {MODES[best.durable]}"


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
    trial.table(
        "Systems",
        ["system", "server and client", "durable", "not durable"],
        [
            [
                kind.name,
                measured.releases.get(kind.name) or measured.missing.get(kind.name),
                kind.as_durable or "never durable",
                kind.as_not_durable or "always durable",
            ]
            for kind in KINDS
        ],
    )
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
