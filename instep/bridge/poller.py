"""The loop of a bridge: poll documents that are due, compare, publish what changed.

    list ids ──▶ state file ──▶ due documents ──▶ request ──▶ compare ──▶ publish ──▶ state file
                 (schedule)        within the rate            (digest)   (acknowledged)

One document has at most one open request, so its changes are published in order. The row of a
document is stored as pending before a change is published, and as published after the broker has
acknowledged it. Everything runs in one event loop; the state file has its own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from instep import bridge_urls, errors, settings
from instep.bridge import delivery, extraction, id_sources, schedule
from instep.bridge.delivery import AnyPublisher
from instep.bridge.extraction import Content
from instep.bridge.failures import REMEDIES, FailureCode, PollFailed
from instep.bridge.http_client import Answer, HttpClient, Validators
from instep.bridge.metrics import BridgeMetrics
from instep.bridge.pacing import Pacer
from instep.bridge.progress import PollCounts, PollReporter, PollSummary, summary
from instep.bridge.state_thread import StateThread
from instep.emit import Publisher
from instep.emit.deliveries import OnDelivery
from instep.metrics_server import MetricsServer
from instep.sinks.bridge_state import DROPPED, LEAVING, BridgeState, PolledDocument

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ATTEMPTS_MAX = 4  # to poll a document, until it counts as failed
READ_AHEAD = 200
IDLE_MAX_S = 30.0
TICK_S = 0.2
SETTLE_S = 3.0  # for open publishes when the bridge stops; what is open then is published again
CLOSE_S = 1.0
COUNT_S = 2.0
COUNT_PAUSES = 50
GIVE_UP_PAUSES = 5  # of --once, if the source does not answer
REPEATED_PAGES_MAX = 3
COMPLETE_SHARE = 0.05  # of the requests are for a complete answer, whatever the source's validators
CONFIRM_S = 60.0  # between two answers that a document does not exist, before it is deleted
DELETES_WINDOW_S = 3_600.0
DELETES_LEAST = 5  # are allowed, whatever share of the documents they are
DELETED = b"deleted"  # in place of a digest

T = TypeVar("T")


def fingerprint(bridge: settings.Bridge) -> str:
    """Return a digest of the settings that decide what is published."""
    parts = [bridge.url, bridge.status, bridge.version, bridge.at, bridge.fields, bridge.final]
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


class BridgePoller:
    """Runs one bridge, until it is stopped or, with `once`, until every document was polled."""

    def __init__(
        self,
        name: str,
        declared: settings.Settings,
        bootstrap: str,
        *,
        once: bool = False,
        connect: Callable[..., AnyPublisher] = Publisher,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare a bridge. `connect` opens its publisher, with the arguments of `Publisher`."""
        self.name = name
        self.bridge = settings.bridge(declared, name)
        self.counts = PollCounts()
        self.reporter = PollReporter(name, self.counts)
        self._kafka, self._bootstrap = declared.kafka, bootstrap
        self._once, self._connect, self._clock = once, connect, clock
        self._limits = schedule.intervals(self.bridge)
        self._chance = random.random
        self._pacer = Pacer(self.bridge.rate_per_s)
        # of the documents that were read from the state file and are not stored again yet
        self._open: set[str] = set()
        self._ready: deque[PolledDocument] = deque()
        self._retries: list[tuple[float, str, PolledDocument]] = []
        self._attempts: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._publishing: set[asyncio.Task[None]] = set()
        self._deletes: deque[float] = deque()  # when the last ones were published
        self._pass = 0
        self._is_listed = False
        self._failure: Exception | None = None
        self._signal: int | None = None
        self._stop, self._wake = asyncio.Event(), asyncio.Event()

    def run(self, metrics_port: int | None = None) -> PollSummary:
        """Run the bridge. A signal ends it; what is open is settled first."""
        server = None
        if metrics_port is not None:
            collector = BridgeMetrics(self.name, self.counts, self.reporter.failures)
            server = MetricsServer(metrics_port, collector)
            self.reporter.say(f"{self.name}: metrics at {server.address}")
        try:
            return self._run()
        finally:
            if server is not None:
                server.close()

    def _run(self) -> PollSummary:
        self._state = BridgeState(
            Path(self.bridge.state or ""),
            mapping=fingerprint(self.bridge),
            topic=self.bridge.topic,
        )
        self._disk = StateThread(self._state)
        try:
            with _previous_handlers():
                asyncio.run(self._main())
        finally:
            self.reporter.close()
            self._disk.close()
        self.reporter.say(f"{self.name}: {summary(self.counts)}")
        if self._failure is not None:
            raise self._failure
        if self._signal is not None and self._once:
            raise SystemExit(128 + self._signal)
        return self.reporter.summary()

    def stop(self) -> None:
        """End a running bridge, from any thread."""
        self._loop.call_soon_threadsafe(self._stop.set)

    # --- the event loop --------------------------------------------------------------------------

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handle_signals()
        await self._begin()
        self._client = HttpClient(self.bridge, self._pacer, self.counts)
        self._ids = id_sources.open_source(self.name, self.bridge, self._client)
        publisher: AnyPublisher | None = None
        try:
            publisher = await self._unless_stopped(delivery.opened(self._open_publisher))
            if publisher is not None:
                self._publisher = publisher
                await self._work()
        finally:
            if publisher is not None:
                await asyncio.to_thread(delivery.close, publisher)
            await self._client.close()

    def _handle_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._on_signal, number)

    async def _begin(self) -> None:
        now = self._clock()
        longest_s = max(self._limits.most_s, self._limits.final_s or 0.0)
        await self._disk.call(self._state.clamp, now + 2 * longest_s, now)
        await self._count_documents()
        if self._once:
            self._pass, is_continued = await self._disk.call(
                self._state.begin_pass, now, self._limits.most_s
            )
            if is_continued:
                left = await self._disk.call(self._state.left_in_pass, self._pass, now)
                self.reporter.say(
                    f"{self.name}: continuing the interrupted pass: {left:,} documents left"
                )

    def _open_publisher(self) -> AnyPublisher:
        return self._connect(
            self._bootstrap,
            self.bridge.topic,
            source=f"instep poll {self.name}",
            security=self._kafka.security,
            flush_timeout_s=CLOSE_S,
        )

    async def _work(self) -> None:
        helpers = [
            asyncio.create_task(self._guarded(self._list_forever())),
            asyncio.create_task(self._guarded(self._report_forever())),
        ]
        try:
            await self._unless_stopped(self._poll_all())
        finally:
            for task in (*helpers, *self._tasks):
                task.cancel()
            await asyncio.gather(*helpers, *self._tasks, return_exceptions=True)
            await self._settle()
        await self._count_documents()
        if self._once and not self._stop.is_set():
            await self._disk.call(self._state.end_pass)

    async def _settle(self) -> None:
        """Wait for the publishes that are open, and store what was acknowledged."""
        if self._publishing:
            await asyncio.wait(self._publishing, timeout=SETTLE_S)
        for task in self._publishing:
            task.cancel()
        await asyncio.gather(*self._publishing, return_exceptions=True)
        await self._disk.settle()

    def _on_signal(self, number: int) -> None:
        self._signal = number
        self._stop.set()

    async def _unless_stopped(self, work: Awaitable[T]) -> T | None:
        """Return the result of the work; None as soon as the bridge must stop."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            return None
        finally:
            stop.cancel()
            task.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """End the bridge if this work fails."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - raised again by `run`
            self._failure = self._failure or error
            self._stop.set()

    # --- ids -------------------------------------------------------------------------------------

    async def _list_forever(self) -> None:
        listed_at = await self._disk.call(self._state.listed_at)
        wait_s, failures, refresh_s = 0.0, 0, self.bridge.ids_refresh_s
        if listed_at is not None and self._ids.is_resumable and not self._once:
            age_s = self._clock() - listed_at
            if 0 <= age_s < refresh_s:
                wait_s = refresh_s - age_s
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self._list()
            except errors.StateUnusable:
                raise
            except (PollFailed, errors.InstepError) as error:
                failures += 1
                self._judge_list_failure(error, failures)
                wait_s = schedule.retry_delay(failures, self._chance())
            else:
                failures, wait_s, self._is_listed = 0, refresh_s, True
                self._wake.set()
                if self._once:
                    return

    async def _list(self) -> None:
        """Read all ids; an interrupted listing continues with its next page."""
        listing = await self._disk.call(self._state.begin_listing, resume=self._ids.is_resumable)
        repeated = 0
        async with contextlib.aclosing(self._ids.pages(listing.page)) as pages:
            async for page in pages:
                added = await self._disk.call(
                    self._state.add_ids, listing, page.ids, page.next_page
                )
                repeated += 1
                if added or not page.ids:
                    repeated = 0
                if repeated >= REPEATED_PAGES_MAX and page.next_page is not None:
                    raise PollFailed(
                        FailureCode.UNEXPECTED, "the pages of the list of ids repeat themselves"
                    )
                for refused in page.refused:
                    self.counts.ids_refused += 1
                    self.reporter.warn(f"{FailureCode.ID_REFUSED.value}: {refused}")
                self._wake.set()
        await self._disk.call(self._state.end_listing, listing, self._clock())
        await self._count_documents()

    def _judge_list_failure(self, error: Exception, failures: int) -> None:
        is_retried = isinstance(error, errors.Unreachable | errors.Transient)
        if isinstance(error, PollFailed):
            is_retried = error.is_retried
        # A wrong setting stays wrong. A bridge that knows documents keeps polling them meanwhile.
        is_needed = self._once or not self.counts.documents
        if (is_needed and not is_retried) or (self._once and failures >= ATTEMPTS_MAX):
            raise _as_error(error) from error
        self.reporter.warn(f"the ids cannot be listed: {'; '.join(str(error).splitlines())}")

    async def _count_documents(self) -> None:
        counts = await self._disk.call(self._state.counts)
        self.counts.documents, self.counts.final = counts["documents"], counts["final"]

    # --- documents -------------------------------------------------------------------------------

    async def _poll_all(self) -> None:
        slots = asyncio.Semaphore(self.bridge.concurrency)
        while True:
            await slots.acquire()
            row = await self._next_due()
            if row is None:
                return
            task = asyncio.create_task(self._guarded(self._handle(row)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: slots.release())

    async def _next_due(self) -> PolledDocument | None:
        """Wait for a document that is due; None if a pass is complete."""
        while True:
            self._wake.clear()
            now = self._clock()
            if self._retries and self._retries[0][0] <= now:
                return heapq.heappop(self._retries)[2]
            if self._ready:
                return self._ready.popleft()
            is_listed = self._is_listed  # before the state file is read: all ids are in it then
            if await self._read_ahead(now):
                continue
            if self._once and is_listed and not self._open:
                return None
            wait_s = IDLE_MAX_S
            if self._retries:
                wait_s = min(wait_s, self._retries[0][0] - now)
            if not self._once:
                due_at = await self._disk.call(self._state.next_due, now)
                if due_at is not None:
                    wait_s = min(wait_s, due_at - now)
            # Not `wait_for`, which may lose a cancellation in Python 3.11.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(wait_s, 0.001)):
                    await self._wake.wait()

    async def _read_ahead(self, now: float) -> bool:
        """Read the next due documents; return whether there are any that are not open."""
        limit = READ_AHEAD + len(self._open)
        if self._once:
            rows = await self._disk.call(self._state.not_in_pass, self._pass, now, limit)
        else:
            rows = await self._disk.call(self._state.due, now, limit)
        found = [row for row in rows if row.id not in self._open]
        self._open.update(row.id for row in found)
        self._ready.extend(found)
        return bool(found)

    async def _handle(self, row: PolledDocument) -> None:
        """Poll a document, and publish what changed."""
        try:
            answer = await self._poll(row)
            await self._judge(row, answer)
        except PollFailed as failure:
            await self._failed(row, failure)
        else:
            self._attempts.pop(row.id, None)
            self._done(row)

    def _done(self, row: PolledDocument) -> None:
        self._open.discard(row.id)
        self.counts.polled += 1
        self._wake.set()

    async def _poll(self, row: PolledDocument) -> Answer:
        try:
            url = bridge_urls.document_url(self.bridge.url, row.id)
        except bridge_urls.Unescapable as error:
            raise PollFailed(FailureCode.ID_REFUSED, str(error)) from error
        # A change that may be published must be compared with a complete answer. A validator that
        # does not change with the document must not hide its last change for ever.
        known = Validators()
        if not row.pending_digest and self._chance() >= COMPLETE_SHARE:
            known = Validators(row.etag, row.modified)
        answer = await self._client.get(url, self.bridge.headers, known)
        if answer.code == 304 and known == Validators():
            raise PollFailed(
                FailureCode.UNEXPECTED, "the source answers HTTP 304 to an unconditional request"
            )
        return answer

    async def _judge(self, row: PolledDocument, answer: Answer) -> None:
        """Compare an answer with what was published last."""
        if answer.code == 304:
            self.counts.unchanged += 1
            await self._disk.save(self._scheduled(row, changed=False, is_final=bool(row.is_final)))
            return
        if answer.code in (404, 410):
            self.counts.missing += 1
            await self._judge_missing(row)
            return
        row = msgspec.structs.replace(row, missing_at=None)
        content = extraction.content(answer.json(), self.bridge)
        is_final = content.status in self.bridge.final
        seen = msgspec.structs.replace(
            row, etag=answer.validators.etag, modified=answer.validators.modified
        )
        if row.pending_digest is None and content.digest == row.digest:
            self.counts.unchanged += 1
            await self._disk.save(self._scheduled(seen, changed=False, is_final=is_final))
            return
        if self._is_stale(row, content):
            self.counts.stale += 1
            await self._disk.save(self._scheduled(row, changed=False, is_final=False))
            return
        self.counts.changed += 1
        pending = await self._pend(row, content)
        sent = msgspec.structs.replace(pending, etag=seen.etag, modified=seen.modified)
        await self._publish(sent, content, self._scheduled(sent, changed=True, is_final=is_final))

    def _is_stale(self, row: PolledDocument, content: Content) -> bool:
        """Return whether an answer is older than what was published, and report a wrong version."""
        if content.version is None or row.version is None or row.digest in (None, DELETED):
            return False
        if content.version < row.version:
            self.reporter.warn(
                f"document {row.id!r}: not published, because its version {content.version} is"
                f" lower than the published version {row.version}"
            )
            return True
        if content.version == row.version and row.pending_digest is None:
            self.reporter.warn(
                f"document {row.id!r} changed, but its version is still {row.version}: a pipeline"
                " that compares versions treats it as a repeat; correct `version` in the bridge's"
                " settings, or remove it"
            )
        return False

    async def _judge_missing(self, row: PolledDocument) -> None:
        is_known = row.digest is not None or row.pending_digest is not None
        is_deleted = row.digest == DELETED and row.pending_digest is None
        row = msgspec.structs.replace(row, etag=None, modified=None)
        if self.bridge.missing == "ignore" or not is_known or is_deleted:
            await self._disk.save(self._scheduled(row, changed=False, is_final=False))
            return
        now = self._clock()
        if row.missing_at is None or not row.missing_at <= now - CONFIRM_S:
            await self._disk.save(self._to_confirm(row, now))
            return
        self._refuse_many_deletes(row.id)
        self.counts.changed += 1
        pending = msgspec.structs.replace(row, pending_digest=DELETED, missing_at=None)
        await self._disk.save(pending)
        await self._publish(pending, None, self._scheduled(pending, changed=True, is_final=False))

    def _to_confirm(self, row: PolledDocument, now: float) -> PolledDocument:
        """Return a missing document as one that is polled again: the answer may be a mistake."""
        since = row.missing_at if row.missing_at is not None and row.missing_at <= now else now
        scheduled = self._scheduled(row, changed=False, is_final=False)
        return msgspec.structs.replace(
            scheduled, missing_at=since, next_at=since + CONFIRM_S, state=row.state
        )

    def _refuse_many_deletes(self, document: str) -> None:
        """Count a delete; raise if a service that has nothing seems to answer."""
        now = time.monotonic()
        self._deletes.append(now)
        while self._deletes[0] < now - DELETES_WINDOW_S:
            self._deletes.popleft()
        count, known = len(self._deletes), self.counts.documents
        if count > max(DELETES_LEAST, self.bridge.deletes_share_max * known):
            raise errors.SettingsError(
                f"the source answers that {document!r} does not exist; with it, {count} of"
                f" {known:,} documents would be deleted within an hour",
                "check that `url` leads to the right service; if the documents are gone, raise"
                " deletes_share_max",
            )

    async def _pend(self, row: PolledDocument, content: Content) -> PolledDocument:
        """Store what is about to be published, with its version. A repetition has the same one."""
        version = content.version
        if version is None:
            version = row.pending_version
            if version is None or row.pending_digest != content.digest:
                # The clock, so that versions increase even if the state file is lost.
                last = max(row.version or 0, row.pending_version or 0)
                version = max(last + 1, int(self._clock()))
        pending = msgspec.structs.replace(
            row, pending_digest=content.digest, pending_version=version
        )
        await self._disk.save(pending)
        return pending

    async def _publish(
        self, pending: PolledDocument, content: Content | None, after: PolledDocument
    ) -> None:
        """Publish a change and store it. When the bridge stops, this is still settled."""
        task = asyncio.create_task(self._deliver(pending, content, after))
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)
        await asyncio.shield(task)

    async def _deliver(
        self, pending: PolledDocument, content: Content | None, after: PolledDocument
    ) -> None:
        def send(on_delivery: OnDelivery) -> None:
            if content is None:
                self._publisher.delete(pending.id, on_delivery=on_delivery)
                return
            event = content.event(pending.id, pending.pending_version)
            try:
                # An error that is raised here, and not reported to the callback, ends the bridge:
                # the publisher cannot continue.
                self._publisher.send(event, on_delivery=on_delivery)
            except errors.SettingsError as error:
                raise PollFailed(FailureCode.UNEXPECTED, error.what) from error

        try:
            await delivery.acknowledged(send)
        except errors.Undelivered as error:
            raise PollFailed(FailureCode.UNDELIVERED, error.what) from error
        self.counts.published += 1
        self.counts.deleted += content is None
        # A delete has no version: the next one must still be higher than the last.
        version: int | None = None
        if content is not None:
            version = pending.pending_version
        await self._disk.save(
            msgspec.structs.replace(
                after,
                digest=pending.pending_digest,
                version=max(filter(None, (version, pending.version)), default=None),
                pending_digest=None,
                pending_version=None,
            )
        )

    # --- afterwards ------------------------------------------------------------------------------

    def _scheduled(self, row: PolledDocument, *, changed: bool, is_final: bool) -> PolledDocument:
        """Return the row with the time of its next request."""
        interval_s = schedule.next_interval(row.interval_s, self._limits, changed=changed)
        next_at: float | None = self._clock() + schedule.delay(
            interval_s, self._limits, self._chance()
        )
        if is_final:
            next_at = None
            if self._limits.final_s is not None:
                next_at = self._clock() + self._limits.final_s
        return msgspec.structs.replace(
            row,
            next_at=next_at,
            is_final=int(is_final),
            interval_s=interval_s,
            failures=0,
            asked_in=self._pass or row.asked_in,
            state=DROPPED if row.state == LEAVING else row.state,
        )

    async def _failed(self, row: PolledDocument, failure: PollFailed) -> None:
        """Retry a document soon, or report it and poll it later."""
        attempt = self._attempts.get(row.id, 0) + 1
        if self._once and self._pacer.pauses >= GIVE_UP_PAUSES:
            raise _as_error(failure) from failure
        # While the source itself is in trouble, no document counts as failed.
        if failure.is_retried and (attempt < ATTEMPTS_MAX or self._pacer.pauses):
            self._attempts[row.id] = attempt
            self.counts.retried += 1
            delay_s = max(
                schedule.retry_delay(attempt, self._chance()), failure.retry_after_s or 0.0
            )
            heapq.heappush(self._retries, (self._clock() + delay_s, row.id, row))
            self._wake.set()
            return
        self._attempts.pop(row.id, None)
        self.counts.failed += 1
        self.reporter.failed(row.id, failure)
        failures = row.failures + 1
        delay_s = schedule.failure_delay(failures, self._limits, self._chance())
        postponed = msgspec.structs.replace(
            row,
            failures=failures,
            next_at=self._clock() + delay_s,
            asked_in=self._pass or row.asked_in,
        )
        # Only the schedule: a change that may be published stays pending.
        await self._disk.save(postponed, is_postponed=True)
        self._done(row)

    async def _report_forever(self) -> None:
        count_at = 0.0
        while True:
            began = time.monotonic()
            if began >= count_at:
                await self._count_documents()
                if self._once:
                    left = await self._disk.call(
                        self._state.left_in_pass, self._pass, self._clock()
                    )
                    self.reporter.left = left
                # Counting a million rows takes a while: spend a small share of the time on it.
                now = time.monotonic()
                count_at = now + max(COUNT_S, COUNT_PAUSES * (now - began))
            paused_s = self._pacer.paused_s
            self.reporter.waits_for = ""
            if paused_s > 1:
                self.reporter.waits_for = f"the source, for {paused_s:.0f} s"
            self.reporter.tick()
            await asyncio.sleep(TICK_S)


def _as_error(error: Exception) -> errors.InstepError:
    """Return a failure that ends the bridge as an error with a remedy."""
    if isinstance(error, errors.InstepError):
        return error
    if not isinstance(error, PollFailed):
        return errors.InstepError(f"unexpected error: {error}")
    kind: type[errors.InstepError] = errors.SettingsError
    if error.code is FailureCode.LOGIN_REFUSED:
        kind = errors.NotAuthorised
    elif error.is_retried:
        kind = errors.SourceUnreachable
    return kind(f"{error.code.value}: {error.detail}", REMEDIES[error.code])


@contextlib.contextmanager
def _previous_handlers() -> Iterator[None]:
    """Restore the handlers of signals afterwards: the event loop resets them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
