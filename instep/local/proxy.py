"""A TCP proxy that injects network faults between clients on this machine and a server.

It can delay, swallow, garble and cut traffic. A delay acts like distance: each direction takes
longer, and data that is sent meanwhile travels too. The proxy counts what it did, so that an
experiment can prove that its fault took effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar

from instep.local import ports

CHUNK_BYTES = 64 * 1024
LARGE_BYTES = 200  # smaller chunks are requests without records
GARBLED_BEFORE_END = 30  # within the value of the last record, behind all lengths and headers
DELAYED_CHUNKS_MAX = 1024  # at the same time, in one direction of a connection

Delayed: TypeAlias = "asyncio.Queue[tuple[float, bytes]]"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class NetworkFault:
    """What the proxy does to the traffic.

    It swallows what the server sends: the server has done the work, and the client never learns of
    it. It garbles what the client sends: one bit near the end of every n-th large chunk, where the
    value of a record is.
    """

    delay_s: float = 0.0
    swallows_answers: bool = False
    refuses: bool = False
    garbles_every: int = 0


@dataclass(slots=True)
class ProxyCounts:
    """What the proxy has done so far."""

    connections: int = 0
    passed_bytes: int = 0
    delayed_chunks: int = 0
    held_most: int = 0
    swallowed_bytes: int = 0
    cut_connections: int = 0
    refused_connections: int = 0
    garbled_chunks: int = 0


class Proxy:
    """Listens on a port of the loopback and forwards to the server, in a separate thread."""

    def __init__(
        self, server_port: int, port: int | None = None, *, server_host: str = ports.HOST
    ) -> None:
        self.port = port or ports.free(1)[0]
        self.counts = ProxyCounts()
        self._server_host, self._server_port = server_host, server_port
        self._fault = NetworkFault()
        self._large_chunks = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"proxy-{self.port}", daemon=True
        )
        self._server: asyncio.Server | None = None

    def start(self) -> None:
        """Start listening."""
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, ports.HOST, self.port))

    def inject(self, fault: NetworkFault) -> None:
        """Apply this fault to all traffic from now on, on open connections too."""
        self._fault = fault

    def clear_fault(self) -> None:
        """Pass all traffic through unchanged from now on."""
        self._fault = NetworkFault()

    def cut(self) -> int:
        """End every connection in both directions; return how many there were."""
        return self._run(self._cut())

    def close(self) -> None:
        """End every connection and stop listening."""
        if self._server is not None:
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    # --- on the proxy's own thread ----------------------------------------------------------------

    async def _serve(
        self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter
    ) -> None:
        if self._fault.refuses:
            self.counts.refused_connections += 1
            client_out.transport.abort()
            return
        try:
            server_in, server_out = await asyncio.open_connection(
                self._server_host, self._server_port
            )
        except (OSError, asyncio.CancelledError):
            client_out.transport.abort()
            return
        self.counts.connections += 1
        self._open |= {client_out, server_out}
        requests: Delayed = asyncio.Queue(DELAYED_CHUNKS_MAX)
        responses: Delayed = asyncio.Queue(DELAYED_CHUNKS_MAX)
        # asyncio's server would report a cancelled task as an error, although `close` cancels it.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(
                self._receive(client_in, requests, answers=False),
                self._forward(requests, server_out),
                self._receive(server_in, responses, answers=True),
                self._forward(responses, client_out),
            )
        for end in (client_out, server_out):
            self._open.discard(end)
            end.transport.abort()

    async def _receive(
        self, source: asyncio.StreamReader, delayed: Delayed, *, answers: bool
    ) -> None:
        """Queue chunks with the time at which to forward them; an empty chunk is the end."""
        with contextlib.suppress(OSError):
            while chunk := await source.read(CHUNK_BYTES):
                fault = self._fault
                if fault.delay_s:
                    self.counts.delayed_chunks += 1
                if fault.swallows_answers and answers:
                    self.counts.swallowed_bytes += len(chunk)
                    continue
                if fault.garbles_every and not answers and len(chunk) > LARGE_BYTES:
                    chunk = self._garbled(chunk, fault.garbles_every)
                # Queue instead of sleeping here: a delay adds latency but limits no throughput.
                await delayed.put((self._loop.time() + fault.delay_s, chunk))
                self.counts.held_most = max(self.counts.held_most, delayed.qsize())
        await delayed.put((self._loop.time() + self._fault.delay_s, b""))

    async def _forward(self, delayed: Delayed, to: asyncio.StreamWriter) -> None:
        """Forward each chunk when it is due; drop it if the receiver is closed."""
        is_open = True
        while True:
            due, chunk = await delayed.get()
            if (left_s := due - self._loop.time()) > 0:
                await asyncio.sleep(left_s)
            if not chunk:
                break
            if is_open:
                try:
                    to.write(chunk)
                    await to.drain()
                    self.counts.passed_bytes += len(chunk)
                except OSError:
                    # Keep emptying the queue: a full one would block `_receive` for ever.
                    is_open = False
        with contextlib.suppress(OSError):
            if to.can_write_eof():
                to.write_eof()

    def _garbled(self, chunk: bytes, every: int) -> bytes:
        self._large_chunks += 1
        if self._large_chunks % every:
            return chunk
        self.counts.garbled_chunks += 1
        place = len(chunk) - GARBLED_BEFORE_END
        return chunk[:place] + bytes([chunk[place] ^ 1]) + chunk[place + 1 :]

    async def _cut(self) -> int:
        ends = list(self._open)  # two for each connection
        for end in ends:
            end.transport.abort()  # drops what is buffered, as a broken network does
        self.counts.cut_connections += len(ends) // 2
        return len(ends) // 2

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._cut()
        # A task that is cancelled before its first step would be reported as an error.
        await asyncio.sleep(0)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
