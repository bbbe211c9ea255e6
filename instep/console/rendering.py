"""Templates: every value is escaped, and an unknown one is shown as unknown."""

from __future__ import annotations

import functools
import hashlib
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from instep import extras
from instep.document.showing import plain

try:
    import jinja2
    import markupsafe
except ModuleNotFoundError as error:
    raise extras.missing("Jinja2", "console") from error

STATIC = Path(__file__).with_name("static")
UNKNOWN = markupsafe.Markup('<span class="unknown">unknown</span>')
HIDDEN = markupsafe.Markup('<span class="unknown">hidden</span>')
FRESHNESS_BOUND_S = 300.0  # of the last bucket but one: beyond it only "longer" is known
SIZE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
CHANGED_IN_FORMS = "\r\n\0"
ENCODED = ".encoded"  # behind the name of a field whose value is percent-encoded
ISO_TIME = re.compile(r"\b([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def show(value: Any) -> Any:
    """Return what a template prints for a value: text without control characters, or unknown."""
    if value is None:
        return UNKNOWN
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, str) and not isinstance(value, markupsafe.Markup):
        return plain(value)
    return value


def instant(at: datetime | None) -> markupsafe.Markup:
    """Return a time. The page's script shows it in local time, with UTC as its title."""
    if at is None:
        return UNKNOWN
    utc = at.astimezone(UTC)
    return markupsafe.Markup('<time datetime="{}" title="{}">{}</time>').format(
        f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03d}Z",
        f"{utc:%Y-%m-%d %H:%M:%S} UTC",
        f"{utc:%Y-%m-%d %H:%M:%S} UTC",
    )


def dated(text: str) -> markupsafe.Markup:
    """Return a sentence of a command, with its times as those of other places on the page."""
    made = markupsafe.Markup()
    for number, part in enumerate(ISO_TIME.split(plain(text))):
        made += _instant_of(part) if number % 2 else markupsafe.escape(part)
    return made


def _instant_of(text: str) -> markupsafe.Markup:
    try:
        return instant(datetime.fromisoformat(text))
    except ValueError:  # digits that are no time
        return markupsafe.escape(text)


def instant_ms(at_ms: int | None) -> Any:
    """Return the time of a record. A producer may write any number."""
    if at_ms is None or at_ms < 0:
        return UNKNOWN
    try:
        return instant(EPOCH + timedelta(milliseconds=at_ms))
    except OverflowError:
        return f"{at_ms} ms"


def number(value: float | None, digits: int = 0) -> Any:
    """Return a number with separators between thousands."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def seconds(value: float | None) -> Any:
    """Return a duration in the unit that fits it."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    if value < 7_200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


def freshness(value: float | None) -> Any:
    """Return a freshness, which is the upper bound of a bucket."""
    if value is not None and value > FRESHNESS_BOUND_S:
        return f"over {FRESHNESS_BOUND_S:.0f} s"
    return seconds(value)


def size(count: int | None) -> Any:
    """Return a number of bytes with a unit."""
    if count is None:
        return UNKNOWN
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(SIZE_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.1f} {SIZE_UNITS[unit]}" if unit else f"{count} B"


def shown_bytes(value: bytes) -> str:
    """Return a record's key or value: as text if it is UTF-8, else in hexadecimal."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.hex(" ")


def is_text(value: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def shortened(value: str | None, characters: int) -> str:
    """Return at most this many characters of a text, each of them whole, if it is escaped."""
    text = value or ""
    return plain(text if len(text) <= characters else text[: characters - 1] + "…")


def exact(value: str) -> markupsafe.Markup:
    """Return text for an attribute that is sent or copied: escaped, but otherwise as it is."""
    return markupsafe.escape(value)


def field(name: str, value: str) -> markupsafe.Markup:
    """Return the name and the value of a form's field, so that exactly this value is submitted.

    Browsers change line breaks in values of forms, and cannot hold a zero byte in them. A value
    with such a character is percent-encoded; `PageRequest.texts` decodes it.
    """
    if any(one in value for one in CHANGED_IN_FORMS):
        name, value = name + ENCODED, quote(value, safe="")
    return markupsafe.Markup('name="{}" value="{}"').format(name, value)


@functools.cache
def asset(name: str) -> str:
    """Return the URL of a static file. It changes with the content, so browsers may keep it."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


@functools.cache
def environment() -> jinja2.Environment:
    """Return the environment of the console's templates."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("instep.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=show,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "dated": dated,
        "exact": exact,
        "freshness": freshness,
        "instant": instant,
        "instant_ms": instant_ms,
        "number": number,
        "seconds": seconds,
        "shortened": shortened,
        "shown_bytes": shown_bytes,
        "size": size,
    }
    made.tests["text"] = is_text
    made.globals |= {"asset": asset, "field": field, "HIDDEN": HIDDEN, "UNKNOWN": UNKNOWN}
    return made


def render(template: str, **values: Any) -> str:
    """Render a template."""
    return environment().get_template(template).render(**values)
