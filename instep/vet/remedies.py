"""SQL statements that change a database setting where it was set, ready to run."""

from __future__ import annotations

from instep.sinks.facts import Facts

RESTARTED = ("max_connections",)  # a reload is not enough
# A session may set these, so the value of a role overrides the server's command line.
OF_SESSIONS = (
    "synchronous_commit",
    "statement_timeout",
    "transaction_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "TimeZone",
)


def setting(facts: Facts, name: str, value: str, url: str) -> str:
    """Return the statement that sets a server variable where it is set now.

    `url` is the name of the setting that has the database's URL: pipelines.contracts.target.
    """
    if facts.kind == "postgresql":
        return _postgres(facts, name, value, url)
    if facts.sources.get(name) == "account" and name in (
        "max_user_connections",
        "max_statement_time",
    ):
        return f"ALTER USER {facts.user} WITH {name.upper()} {value}"
    if facts.kind == "mysql":
        # MariaDB has no SET PERSIST.
        return f"SET PERSIST {name} = {value}"
    return (
        f"SET GLOBAL {name} = {value}; and to keep it after a restart, {name} = {value} below"
        " [mariadbd] in the server's my.cnf"
    )


def _postgres(facts: Facts, name: str, value: str, url: str) -> str:
    role, database = facts.user or "CURRENT_USER", facts.quoted(facts.database)
    match facts.sources.get(name, ""):
        case "user":
            return f"ALTER ROLE {role} SET {name} = {value}"
        case "database user":
            return f"ALTER ROLE {role} IN DATABASE {database} SET {name} = {value}"
        case "database":
            return f"ALTER DATABASE {database} SET {name} = {value}"
        case "global":
            return f"ALTER ROLE ALL SET {name} = {value}"
        case "client" | "session" | "environment variable":
            return f"remove {name} from the options in {url}, or from PGOPTIONS in the environment"
        case "command line":
            if name in OF_SESSIONS:
                return f"ALTER ROLE {role} SET {name} = {value}"
            return (
                f"remove {name} from the command line that starts the server, then restart"
                " the server"
            )
    if name in RESTARTED:
        return f"ALTER SYSTEM SET {name} = {value}; then restart the server"
    return f"ALTER SYSTEM SET {name} = {value}; SELECT pg_reload_conf()"


def connection_limit(facts: Facts, which: str, wanted: int, url: str) -> str:
    """Return the statement that raises the connection limit that applies."""
    match which:
        case "ROLE_CONNECTIONS":
            return f"ALTER ROLE {facts.user} CONNECTION LIMIT {wanted}"
        case "DATABASE_CONNECTIONS":
            return f"ALTER DATABASE {facts.quoted(facts.database)} CONNECTION LIMIT {wanted}"
        case "MAX_USER_CONNECTIONS":
            return f"ALTER USER {facts.user} WITH MAX_USER_CONNECTIONS {wanted}"
    return setting(facts, which, str(wanted), url)


def own_account(facts: Facts, name: str, tables: list[str]) -> str:
    """Return the statements that create an account with only the rights that a pipeline needs."""
    rights = "SELECT, INSERT, UPDATE, DELETE"
    quoted = [facts.quoted(*table.split(".")) for table in tables]
    if facts.kind == "postgresql":
        role = facts.quoted(f"instep_{name}")
        return (
            f"CREATE ROLE {role} LOGIN; GRANT {rights} ON {', '.join(quoted)} TO {role};"
            f" GRANT TEMPORARY ON DATABASE {facts.quoted(facts.database)} TO {role}; then give"
            f" it a password: \\password {role}"
        )
    # ACCOUNT LOCK, because anybody could log in until the account has a password.
    account = f"'instep_{name}'@'%'"
    grants = "; ".join(f"GRANT {rights} ON {table} TO {account}" for table in quoted)
    return (
        f"CREATE USER {account} ACCOUNT LOCK; {grants}; GRANT CREATE TEMPORARY TABLES ON"
        f" {facts.quoted(facts.database)}.*"
        f" TO {account}; then give it a password and unlock it with ALTER USER"
    )
