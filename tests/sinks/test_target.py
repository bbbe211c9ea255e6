"""Test the target's URL: what is refused before connecting, and how it is shown."""

from __future__ import annotations

import pytest

from instep import errors
from instep.sinks import target


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://app:hush@db:54x2/contracts", "a port that is not a number"),
        ("postgresql://app:hush/contracts", "a port that is not a number"),
        ("mysql://app:hush@db:99999/contracts", "port 99999"),
        ("postgresql://app:hu@sh@db/contracts", "%40"),
        ("mysql://app:hu@s/h@db/contracts", "%40"),
        ("postgress://db/contracts", "did you mean 'postgres'?"),
        ("hush", "not a database URL"),
        ("sqlite://", "must be a file"),
        ("postgresql://db/d?sslmod=require", "did you mean 'sslmode'?"),
        ("postgresql://db/d?ssl=require", "did you mean 'sslmode'?"),
        ("postgresql://db/d?SSLMODE=require", "did you mean 'sslmode'?"),
        ("mysql://db/d?ssl_mode=REQUIRED", "did you mean 'sslmode'?"),
        ("mysql://db/d?ssl-ca=ca.pem", "did you mean 'sslrootcert'?"),
        ("mysql://db/d?ssl_key=key.pem", "did you mean 'sslkey'?"),
        ("postgresql://db/d?sslmode=verify_full", "did you mean 'verify-full'?"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_a_remedy(url: str, words: str) -> None:
    with pytest.raises(errors.SettingsError) as caught:
        target.database_url(url)
    assert words in str(caught.value)
    assert caught.value.remedy
    assert "hush" not in str(caught.value)
    assert "s/h" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "postgresql://app:hush@db:5432/contracts?sslpassword=hush",
            "postgresql://app:***@db:5432/contracts",
        ),
        ("postgresql+psycopg2://app@db/contracts", "postgresql://app@db/contracts"),
        ("mariadb://app:p%40ss@db/contracts", "mariadb://app:***@db/contracts"),
        ("sqlite:////data/a@b.db", "sqlite:////data/a@b.db"),
    ],
)
def test_a_url_is_shown_as_it_was_written_without_its_password(url: str, shown: str) -> None:
    assert target.shown(target.database_url(url)) == shown
