"""Who may use the console: a token for this machine, a file of users, or a trusted proxy.

Every request is checked before a page sees it: the Host header (against DNS rebinding), the origin
of writes (against forged forms), and the person. Every response carries the same strict policy.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import secrets
import threading
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import argon2
import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from instep import errors
from instep.document.showing import plain

LOOPBACK = ("127.0.0.1", "localhost", "::1")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
NOTHING = "'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    # not no-referrer: browsers would then send the origin of a form as null
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
READING = ("GET", "HEAD")
SESSION_S = 12 * 3600.0
SESSIONS_OF_PERSON_MAX = 20
ONE_TIME_S = 60.0
FAILURES_FREE = 3  # wrong passwords for one name from one address; then each doubles the wait
WAIT_FIRST_S, WAIT_MAX_S = 2.0, 300.0
FAILURES_KEPT_MAX = 10_000
DEFAULT_PORTS = {"http": 80, "https": 443}
PASSWORD_CHARACTERS_MIN = 8
USER_CHARACTERS_MAX = 100  # the length of instep_decisions.actor

Role = Literal["viewer", "operator"]

audit = logging.getLogger("instep.console.audit")


class Person(msgspec.Struct, frozen=True):
    """Who sent a request."""

    name: str
    role: Role = "operator"


class DeclaredUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One user of the users file. Behind a proxy, users have no password."""

    role: Role = "viewer"
    password: str | None = None


class TrustedProxy(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}
):
    """A proxy that has checked who the user is, and says so in a header."""

    header: str
    from_: list[str]


class UsersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of `--auth`."""

    users: dict[str, DeclaredUser] = {}
    proxy: TrustedProxy | None = None
    hosts: list[str] = []
    forwarded_from: list[str] = []  # proxies that say where a request came from


def load_users(path: Path) -> UsersFile:
    """Read a users file."""
    hint = "see the guide: Use the console; make an entry with: instep console user NAME"
    try:
        file = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), UsersFile)
        _check_users(file)
    except OSError as error:
        raise errors.SettingsError(f"{path} cannot be read: {error.strerror}", hint) from error
    except argon2.exceptions.InvalidHash as error:
        raise errors.SettingsError(f"{path}: a password is not an argon2 hash", hint) from error
    except (ValueError, msgspec.ValidationError) as error:
        raise errors.SettingsError(f"{path} is not a users file: {error}", hint) from error
    if not file.users:
        raise errors.SettingsError(f"{path} declares no users", hint)
    return file


def _check_users(file: UsersFile) -> None:
    """Raise ValueError, or InvalidHash, for a wrong address, name or password."""
    for address in (*file.forwarded_from, *(file.proxy.from_ if file.proxy else ())):
        ipaddress.ip_network(address)
    for name, user in file.users.items():
        if user.password is not None:
            argon2.extract_parameters(user.password)
        if not 0 < len(name) <= USER_CHARACTERS_MAX:
            raise ValueError(f"user {name!r} needs 1 to {USER_CHARACTERS_MAX} characters")


def user_entry(name: str, role: Role, password: str) -> str:
    """Return the lines of a users file that declare a user with a password."""
    quoted = msgspec.json.encode(name).decode()
    digest = argon2.PasswordHasher().hash(password)
    return f'[users.{quoted}]\nrole = "{role}"\npassword = "{digest}"\n'


class SignIn(msgspec.Struct, frozen=True):
    """A person who has signed in, when, and with which hash of a password."""

    at_s: float  # on the monotonic clock
    person: Person
    password: str | None = None


class Sessions:
    """The signed-in persons, by the value of their cookie."""

    def __init__(self, cookie: str) -> None:
        self.cookie = cookie
        self._lock = threading.Lock()
        self._open: dict[str, SignIn] = {}

    def open(self, person: Person, password: str | None = None) -> str:
        """Open a session; return the value of its cookie. The oldest of too many is closed."""
        value = secrets.token_urlsafe(32)
        now = time.monotonic()
        with self._lock:
            self._open = {
                key: kept for key, kept in self._open.items() if now - kept.at_s < SESSION_S
            }
            own = [key for key, kept in self._open.items() if kept.person.name == person.name]
            for key in own[: max(0, len(own) + 1 - SESSIONS_OF_PERSON_MAX)]:
                self._open.pop(key)
            self._open[value] = SignIn(now, person, password)
        return value

    def find(self, value: str | None) -> SignIn | None:
        """Return the session of a cookie."""
        with self._lock:
            kept = self._open.get(value or "")
        return kept if kept and time.monotonic() - kept.at_s < SESSION_S else None

    def close(self, value: str | None) -> None:
        """Close a session."""
        with self._lock:
            self._open.pop(value or "", None)


class DeclaredUsers:
    """The users of a file, read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._seen = self._mark()
        self._file = load_users(path)

    def read(self) -> UsersFile:
        """Return what the file declares now; what it declared before, if it is wrong now."""
        with self._lock:
            mark = self._mark()
            if mark != self._seen:
                self._seen = mark
                self._read_again()
            return self._file

    def _read_again(self) -> None:
        try:
            self._file = load_users(self._path)
        except errors.SettingsError as error:
            audit.warning("the users stay as they were: %s", error.what)
        else:
            audit.info("read %s again", self._path)

    def _mark(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


class Failures:
    """Wrong passwords, by name and address: nobody can keep a person out from elsewhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], tuple[int, float]] = {}  # and the time of the last one

    def wait_s(self, name: str, address: str) -> float:
        """Return how long this name has to wait at this address."""
        with self._lock:
            count, at = self._counts.get((name, address), (0, 0.0))
        if count < FAILURES_FREE:
            return 0.0
        wait_s = min(WAIT_MAX_S, WAIT_FIRST_S * 2.0 ** min(count - FAILURES_FREE, 20))
        return max(0.0, at + wait_s - time.monotonic())

    def add(self, name: str, address: str) -> None:
        """Count a wrong password."""
        with self._lock:
            count, _ = self._counts.pop((name, address), (0, 0.0))
            self._counts[name, address] = (count + 1, time.monotonic())
            while len(self._counts) > FAILURES_KEPT_MAX:
                self._counts.pop(next(iter(self._counts)))

    def forget(self, name: str, address: str) -> None:
        """Start again after a right password."""
        with self._lock:
            self._counts.pop((name, address), None)


class Doorkeeper:
    """Decides who a request is from."""

    def __init__(
        self, sessions: Sessions, *, token_user: str, users: UsersFile | DeclaredUsers | None
    ) -> None:
        """Without users, whoever has the token is `token_user`."""
        self.sessions, self._users, self.failures = sessions, users, Failures()
        self.token = secrets.token_urlsafe(32)
        self._token_user = token_user
        self._lock = threading.Lock()
        self._one_time: dict[str, float] = {}  # tokens, and until when each is valid
        self._hasher = argon2.PasswordHasher()
        # checked for unknown names too, so that the time does not tell which names exist
        self._no_password = self._hasher.hash(secrets.token_hex(16)) if users else ""

    @property
    def users(self) -> UsersFile | None:
        """Return the users as they are declared now."""
        return self._users.read() if isinstance(self._users, DeclaredUsers) else self._users

    @property
    def signs_in(self) -> bool:
        """Return whether people sign in with a password."""
        users = self.users
        return users is not None and users.proxy is None

    def one_time_token(self) -> str:
        """Return a token that opens one session, and soon none any more.

        A browser is started with its URL as an argument, which every user of the machine can read.
        """
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._one_time[token] = time.monotonic() + ONE_TIME_S
        return token

    def by_token(self, token: str) -> str | None:
        """Return the cookie of a new session if the token is right."""
        if self.users is not None:
            return None
        with self._lock:
            is_one_time = self._one_time.pop(token, 0.0) > time.monotonic()
        if not is_one_time and not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        return self.sessions.open(Person(self._token_user))

    def by_password(self, name: str, password: str, address: str) -> str | None:
        """Return the cookie of a new session if name and password are right."""
        users = self.users
        declared = users.users.get(name) if users else None
        digest = declared.password if declared else None
        shown = plain(name[:USER_CHARACTERS_MAX])
        try:
            self._hasher.verify(digest or self._no_password, password)
        except argon2.exceptions.VerificationError:
            digest = None
        if declared is None or digest is None:
            self.failures.add(name, address)
            audit.warning("sign-in failed: %s from %s", shown, address)
            return None
        self.failures.forget(name, address)
        audit.info("signed in: %s, %s, from %s", shown, declared.role, address)
        return self.sessions.open(Person(name, declared.role), digest)

    def person(self, request: Request) -> Person | None:
        """Return who sent a request; None if that is not known."""
        users = self.users
        if users is not None and users.proxy is not None:
            return self._by_proxy(request, users, users.proxy)
        session = self.sessions.find(request.cookies.get(self.sessions.cookie))
        if session is None or users is None:
            return session.person if session else None
        # the user may have been removed since, or got another role or password
        declared = users.users.get(session.person.name)
        if declared is None or declared.password != session.password:
            return None
        return Person(session.person.name, declared.role)

    def _by_proxy(self, request: Request, users: UsersFile, proxy: TrustedProxy) -> Person | None:
        names = request.headers.getlist(proxy.header)
        # of several headers, one may come from the browser
        if len(names) != 1 or not _is_within(_peer(request), proxy.from_):
            return None
        declared = users.users.get(names[0])
        return Person(names[0], declared.role) if declared else None


def client_address(request: Request, users: UsersFile | None) -> str:
    """Return the address of the browser: as a declared proxy says, else of the connection."""
    address = _peer(request)
    if users is None or not _is_within(address, users.forwarded_from):
        return address
    # a proxy adds the address that it sees behind what the browser may have sent
    said = ",".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
    return plain(said[:USER_CHARACTERS_MAX]) or address


def _peer(request: Request) -> str:
    return request.client.host if request.client else ""


def _is_within(text: str, networks: Sequence[str]) -> bool:
    """Return whether an address is in one of these networks."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return any(address in ipaddress.ip_network(network) for network in networks)


def refusal(headers: Headers, method: str, hosts: frozenset[str]) -> str | None:
    """Return why a request is refused whoever sent it, or None. `hosts` are in lower case."""
    host = headers.get("host", "")
    if _host_name(host) not in hosts:
        return "The address that this request names is not one of the console's own."
    if method in READING:
        return None
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return "This request does not say which page it comes from."
    is_own = origin is None or _is_origin_of(origin, host)
    if site not in (None, "same-origin") or not is_own:
        return "This request comes from a page of another site."
    return None


def is_from_elsewhere(headers: Headers) -> bool:
    """Return whether a page of another site makes the browser send a request."""
    return headers.get("sec-fetch-site") in ("cross-site", "same-site")


def uses_https(headers: Headers) -> bool:
    """Return whether the page that sends a form was loaded by HTTPS, from a proxy."""
    return headers.get("origin", "").startswith("https://")


def is_own_path(url: str) -> bool:
    """Return whether a URL is a path of this site only, however a browser reads it.

    Browsers take a backslash for a slash, and drop tabs and line breaks.
    """
    has_control = any(one < " " for one in url)
    return url.startswith("/") and not url.startswith(("//", "/\\")) and not has_control


def _host_name(host: str) -> str | None:
    """Return the name in a Host header, in lower case; None if it has none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_origin_of(origin: str, host: str) -> bool:
    """Return whether an Origin header names the host of a Host header, by name and port.

    Browsers leave out the default port of a scheme; proxies may add it.
    """
    try:
        page, own = urlsplit(origin), urlsplit(f"//{host}")
        default = DEFAULT_PORTS.get(page.scheme)
        same_port = (page.port or default) == (own.port or default)
    except ValueError:
        return False
    return page.hostname is not None and page.hostname == own.hostname and same_port


class PolicyMiddleware:
    """Adds the headers of the policy to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_policy if scope["type"] == "http" else send)
