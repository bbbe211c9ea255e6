"""Check what the types of the settings of bridges and of the connection cannot express."""

from __future__ import annotations

from collections.abc import Mapping

from instep import bridge_urls, errors
from instep.settings.cluster import Security
from instep.settings.sources import Bridge
from instep.settings.values import BRIDGE_NAME, EVENT_FIELDS, HEADER_NAME, HEADER_VALUE, LINK_HEADER

# example lines of [kafka.security] for the remedy of an error
EXAMPLES = {
    "mechanism": 'mechanism = "SCRAM-SHA-512"',
    "username": 'username = "instep"',
    "password": 'password = "${KAFKA_PASSWORD}"',
}


def check_bridge(name: str, bridge: Bridge) -> None:
    place = f"bridges.{name}"
    if not BRIDGE_NAME.fullmatch(name):
        raise errors.SettingsError(
            f"{place}: a bridge's name has 1 to 100 letters, digits, dots, hyphens or underscores",
            "choose another name",
        )
    bridge_urls.check_template(bridge.url, f"{place}.url")
    _check_ids(place, bridge)
    _check_headers(f"{place}.headers", bridge.headers)
    if bridge.interval_min_s > bridge.interval_max_s:
        raise errors.SettingsError(
            f"{place}: interval_min_s is {bridge.interval_min_s:g},"
            f" but interval_max_s is {bridge.interval_max_s:g}",
            "set interval_min_s to at most interval_max_s",
        )
    if bridge.final_interval_s < 0:
        raise errors.SettingsError(
            f"{place}.final_interval_s is negative", "write a number of seconds, or 0 for never"
        )
    for field in bridge.fields:
        if field in EVENT_FIELDS:
            raise errors.SettingsError(
                f"{place}.fields.{field} is a field that the bridge writes itself",
                "choose another name, or use `status`, `version` and `at`",
            )
    paths = {name: getattr(bridge, name) for name in ("status", "version", "at")}
    for key, path in {
        **paths,
        **{f"fields.{name}": one for name, one in bridge.fields.items()},
    }.items():
        if path is not None and not all(path.removeprefix("$.").split(".")):
            raise errors.SettingsError(
                f"{place}.{key} is {path!r}, which is not a path",
                'write the names of objects and the numbers in lists with dots: "jobs.0.status"',
            )


def _check_ids(place: str, bridge: Bridge) -> None:
    named = [key for key in ("ids_file", "ids_query", "ids_list") if getattr(bridge, key)]
    if len(named) != 1:
        problem = f"sets {' and '.join(named)}" if named else "does not say where the ids are"
        raise errors.SettingsError(
            f"[{place}] {problem}", "set one of ids_file, ids_query with ids_url, and ids_list"
        )
    if (bridge.ids_query is None) is not (bridge.ids_url is None):
        lacks = "ids_url" if bridge.ids_url is None else "ids_query"
        raise errors.SettingsError(
            f"[{place}] lacks {lacks}", "set both: ids_query, and ids_url for its database"
        )
    listed = bridge.ids_list
    if listed is None:
        return
    bridge_urls.check(listed.url, f"{place}.ids_list.url")
    _check_headers(f"{place}.ids_list.headers", listed.headers)
    if listed.next is not None and listed.page_parameter is not None:
        raise errors.SettingsError(
            f"{place}.ids_list has both next and page_parameter",
            "keep next if a page contains the link to the next one, else page_parameter",
        )
    if listed.next_parameter is not None and listed.next in (None, LINK_HEADER):
        raise errors.SettingsError(
            f"{place}.ids_list.next_parameter needs the path of its value",
            'add e.g. next = "next_page_token"',
        )


def _check_headers(place: str, headers: Mapping[str, str]) -> None:
    """Refuse what no request can contain. The value is not shown: it may be a secret."""
    for name, value in headers.items():
        if not HEADER_NAME.fullmatch(name) or name.lower() in ("host", "content-length"):
            raise errors.SettingsError(
                f"{place}: {name!r} cannot be set", 'write e.g. Authorization = "Bearer ${TOKEN}"'
            )
        if not HEADER_VALUE.fullmatch(value):
            raise errors.SettingsError(
                f"{place}.{name} is empty, begins or ends with a space,"
                " or contains a control or non-ASCII character",
                "correct it, or the environment variable that it names",
            )


def check_security(security: Security) -> None:
    if security.protocol.startswith("SASL"):
        for key in ("mechanism", "username", "password"):
            if getattr(security, key) is None:
                raise errors.SettingsError(
                    f"kafka.security: protocol {security.protocol} needs {key}",
                    f"add to [kafka.security]: {EXAMPLES[key]}",
                )
    elif security.username or security.password or security.mechanism:
        raise errors.SettingsError(
            f"kafka.security: protocol {security.protocol} does not use a user",
            'set protocol = "SASL_SSL" or "SASL_PLAINTEXT",'
            " or remove username, password and mechanism",
        )
