"""Test a relay whose source vanishes without closing its connections."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from instep import settings
from instep.kafka.connection import Cluster
from instep.local.proxy import NetworkFault, Proxy
from instep.relay import relay as relays
from instep.relay.session import RelayProgress
from instep.sinks import connecting, target, timeouts
from tests.support.print_shop import PrintShop, difference
from tests.support.waiting import wait_until

SILENT = NetworkFault(swallows_answers=True)


@contextmanager
def through_proxy(shop: PrintShop) -> Iterator[tuple[settings.Relay, Proxy]]:
    """Yield the relay of a shop with a proxy before its source."""
    url = target.database_url(shop.relay.source)
    assert url.port is not None
    with Proxy(url.port) as proxy:
        through = url.set(host="127.0.0.1", port=proxy.port)
        source = through.render_as_string(hide_password=False)
        yield msgspec.structs.replace(shop.relay, source=source), proxy


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_relay_stops_while_its_source_does_not_answer(
    kind: str,
    open_shop: Callable[..., PrintShop],
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let the source vanish under a session, stop it, and continue with another one."""
    monkeypatch.setattr(relays, "STOP_S", 0.5)
    shop = open_shop(kind)
    shop.work(3)
    stop, progress = threading.Event(), RelayProgress()
    with through_proxy(shop) as (relay, proxy):

        def run() -> None:
            relays.run(
                shop.name,
                relay,
                cluster,
                once=False,
                stop=stop,
                say=lambda _: None,
                progress=progress,
            )

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: not difference(shop, cluster, relay.topic), "the first rows")
        proxy.inject(SILENT)
        wait_until(lambda: proxy.counts.swallowed_bytes > 0, "a question to the source")
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
        proxy.clear_fault()
        shop.work(3, seed=1)
        run_again: dict[str, Any] = {"say": lambda _: None, "progress": progress}
        relays.run(shop.name, relay, cluster, once=True, stop=threading.Event(), **run_again)
    assert not difference(shop, cluster, shop.relay.topic)


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_connection_lets_the_system_notice_that_the_server_has_vanished(
    kind: str, new_database: Callable[[str], str]
) -> None:
    with connecting.connection(target.database_url(new_database(kind))) as opened:
        driver: Any = opened.connection.driver_connection
        end = driver if kind == "postgres" else driver._sock
        with socket.socket(fileno=os.dup(end.fileno())) as copy:
            found = [
                copy.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT)
            ]
    assert found == [timeouts.IDLE_S, timeouts.UNACKNOWLEDGED_MS]
