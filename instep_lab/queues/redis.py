"""Redis as a queue, with lists and with streams.

The server responds to every command; its settings decide what that response guarantees. Reading a
list removes the message. In durable use, a message is first moved to a second list, which is
emptied when the work is done, so that messages of a dead reader survive. A stream tracks this
itself, per consumer group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from instep_lab.queues import system

GROUP, READER, FIELD = "readers", "reader", "m"


def _release(client: redis.Redis) -> str:
    server: Any = client.info("server")
    return f"Redis {server['redis_version']}, redis-py {redis.__version__}"


class ListQueue:
    def __init__(self, url: str, name: str, *, durable: bool) -> None:
        self._client = redis.Redis.from_url(url)
        self._client.ping()
        self._name, self._taken = name, f"{name}:taken"
        self._durable = durable

    def enqueue(self, messages: Sequence[bytes]) -> None:
        for batch in system.batches(messages):
            with self._client.pipeline(transaction=False) as pipeline:
                for message in batch:
                    pipeline.lpush(self._name, message)
                pipeline.execute()

    def dequeue(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            limit = system.next_batch(count, found)
            with self._client.pipeline(transaction=False) as pipeline:
                for _ in range(limit):
                    if self._durable:
                        pipeline.lmove(self._name, self._taken, "RIGHT", "LEFT")
                    else:
                        pipeline.rpop(self._name)
                batch = [message for message in pipeline.execute() if message is not None]
            if not batch:
                break
            found += batch
            if self._durable:
                self._client.delete(self._taken)
        return found

    def release(self) -> str:
        return _release(self._client)

    def close(self) -> None:
        self._client.close()


class StreamQueue:
    def __init__(self, url: str, name: str, *, durable: bool) -> None:
        self._client = redis.Redis.from_url(url)
        self._name = name
        self._durable = durable
        try:
            self._client.xgroup_create(name, GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):  # the client has no type for it
                raise

    def enqueue(self, messages: Sequence[bytes]) -> None:
        for batch in system.batches(messages):
            with self._client.pipeline(transaction=False) as pipeline:
                for message in batch:
                    pipeline.xadd(self._name, {FIELD: message})
                pipeline.execute()

    def dequeue(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            limit = system.next_batch(count, found)
            answer: Any = self._client.xreadgroup(
                GROUP, READER, {self._name: ">"}, count=limit, noack=not self._durable
            )
            entries = _entries(answer)
            if not entries:
                break
            found += [fields[FIELD.encode()] for _, fields in entries]
            if self._durable:
                self._client.xack(self._name, GROUP, *(number for number, _ in entries))
        return found

    def release(self) -> str:
        return _release(self._client)

    def close(self) -> None:
        self._client.close()


def _entries(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return the entries of the requested stream; the protocols answer with pairs or with a map."""
    streams = list(answer.values() if isinstance(answer, dict) else (one for _, one in answer))
    if not streams:
        return []
    [entries] = streams
    # the newer protocol wraps them in a list
    return entries[0] if entries and isinstance(entries[0], list) else entries
