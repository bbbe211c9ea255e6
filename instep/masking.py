"""Hide secrets in what people read: the password of a URL, and every URL inside a longer text."""

from __future__ import annotations

import re

STARS = "***"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
_PASSWORD_OPTION = re.compile(r"(?i)([?&][^=&]*pass[^=&]*=)[^&]*")


def masked_url(url: str) -> str:
    """Replace the password of a URL by stars; if the text is not a URL, all of it.

    The login ends at the last `@`, so that a password with an unencoded `@` is masked completely.
    """
    scheme, sign, rest = url.partition("://")
    if not sign:
        return STARS
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    place = _PASSWORD_OPTION.sub(rf"\1{STARS}", place)
    return f"{scheme}://{user}{f':{STARS}' if colon else ''}{at}{place}"


def masked_text(text: str) -> str:
    """Mask every URL in a text, such as the message of a driver."""
    return _URL.sub(lambda found: masked_url(found[0]), text)
