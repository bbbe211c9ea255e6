"""Test the settings file: what is read, what is refused, and the messages."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from instep import errors, masking, settings
from instep.settings import loading
from tests.support.cli import settings_text

GOOD = settings_text(
    bootstrap="broker1:9092,broker2:9092",
    topic="print-status",
    target="postgresql://app:${DB_PASSWORD}@db/contracts",
)
SECRETS = {"DB_PASSWORD": "secret"}


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def long(column: str) -> str:
    """Return the settings with one more column."""
    return f"{GOOD}extra = {column}\n"


def test_a_column_has_a_short_and_a_long_form() -> None:
    found = settings.parse(long('{ field = "note", type = "varchar(20)", trim = true }'), SECRETS)
    mapped = found.pipelines["contracts"].mapped
    assert mapped["extra"] == settings.ColumnMapping(field="note", type="varchar(20)", trim=True)
    assert mapped["print_status"] == settings.ColumnMapping(field="status")
    shown = dict(settings.effective(found))
    assert shown["pipelines.contracts.columns.extra.type"] == "varchar(20)"
    assert shown["pipelines.contracts.columns.print_status"] == "status"


def test_defaults() -> None:
    found = settings.parse(GOOD, SECRETS)
    pipeline = found.pipelines["contracts"]
    assert (pipeline.guarantee, pipeline.start, pipeline.missing, pipeline.history) == (
        "exactly-once",
        "earliest",
        "insert",
        True,
    )
    assert pipeline.target == "postgresql://app:secret@db/contracts"
    assert found.spark.master == "local[*]"


def test_a_password_needs_no_encoding() -> None:
    found = settings.parse(GOOD, {"DB_PASSWORD": "p@ss/w:rd%"})
    assert found.pipelines["contracts"].target == "postgresql://app:p%40ss%2Fw%3Ard%25@db/contracts"


def test_a_whole_url_from_the_environment_stays_as_it_is() -> None:
    text = changed('"postgresql://app:${DB_PASSWORD}@db/contracts"', '"${TARGET}"')
    assert (
        settings.parse(text, {"TARGET": "mysql://u:p%40@h/d"}).pipelines["contracts"].target
        == "mysql://u:p%40@h/d"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            changed("topic =", "topik ="),
            "unknown key 'topik' in [pipelines.contracts]; did you mean 'topic'?",
        ),
        (
            changed("[kafka]", "[kafca]"),
            "unknown key 'kafca' in the settings file; did you mean 'kafka'?",
        ),
        (changed('status = "status"\norder', 'statsu = "status"\norder'), "did you mean 'status'?"),
        (changed('topic = "print-status"', ""), "missing the key 'topic'"),
        (
            changed('topic = "print-status"', "topic = 3"),
            "topic must be text in quotes, not a whole number",
        ),
        (changed('topic = "print-status"', 'topic = ["a"]'), 'write e.g. topic = "text"'),
        (changed('at = "updated_at"', 'at = ["a"]'), "event.at must be text in quotes, not a list"),
        (
            changed('key = "doc_no"', 'key = "doc_no"\nguarantee = "exactly_once"'),
            "did you mean 'exactly-once'?",
        ),
        (
            changed('key = "doc_no"', 'key = "doc_no"\nguarantee = "twice"'),
            'guarantee = "at-most-once"',
        ),
        (
            changed('key = "doc_no"', 'key = "doc_no"\nhistory = "no"'),
            "history must be true or false, not text in quotes",
        ),
        (
            changed('key = "doc_no"', 'key = "doc_no"\ntransitions = "A"'),
            "transitions must be a table, not text in quotes",
        ),
        (
            changed('key = "doc_no"', 'key = "doc_no"\ntransitions = { A = "B" }'),
            "transitions.* must be a list",
        ),
        (GOOD + "\n[vet]\noutage_hours_max = 1.5\n", "outage_hours_max = 72"),
        (changed('key = "doc_no"', 'key = "doc_no"\nstart = "tomorrow"'), "start is 'tomorrow'"),
        (
            changed('print_status = "status"\n', "").replace(
                'key = "doc_no"', 'key = "doc_no"\ntransitions = {A = ["B"]}'
            ),
            "status",
        ),
        (changed('key = "doc_no"', 'key = "doc_no"\ntransitions = {A = [""]}'), "empty status"),
        (changed('key = "doc_no"', 'key = "doc_no"\nbatch_rows_max = 0'), "batch_rows_max"),
        (
            changed('print_version = "version"\n', ""),
            "event.order is 'version', but no column stores it",
        ),
        (changed('print_status = "status"', 'doc_no = "doc_id"'), "is a key column"),
        (
            GOOD.partition("[pipelines.contracts.columns]")[0] + "[pipelines.contracts.columns]\n",
            "columns is empty",
        ),
        (GOOD + '\n[kafka.security]\nprotocol = "SASL_SSL"\n', "needs mechanism"),
        (GOOD + '\n[kafka.security]\nusername = "x"\n', "does not use a user"),
        (
            long('{ field = "status", tipe = "text" }'),
            "unknown key 'tipe' in [pipelines.contracts.columns.extra]",
        ),
        (long('{ type = "text" }'), "columns.extra has neither a field nor a value"),
        (long('{ field = "x", value = 1 }'), "columns.extra has a field and a value"),
        (long("{ value = 1, trim = true }"), "is a constant, which does not allow trim"),
        (long('{ field = "x", type = "varchr(20)" }'), "is not a type; did you mean 'varchar'?"),
        (long('{ field = "x", type = "decimal(2,4)" }'), "not every database supports"),
        (
            long('{ field = "x", convert = "integer" }'),
            "convert is 'integer', which is not allowed",
        ),
        (
            long('{ field = "x", unit = "us", trim = true }'),
            "so its field is a time, which does not allow trim",
        ),
        (
            changed('= "version"\nprinted', '= { field = "version", round = true }\nprinted'),
            "stores the order value",
        ),
        (
            changed('key = "doc_no"', 'key = "doc_no"\nkey_type = "json"'),
            "key_type is 'json', which is not a type",
        ),
        (
            changed('key = "doc_no"', 'key = "doc_no"\nkey_type = "date"'),
            "key_type is 'date', which is not a type",
        ),
        (changed('key = "doc_no"', "key = []"), "key is []"),
        (changed('key = "doc_no"', 'key = ["a", "a"]'), "name each key column once"),
        (changed('key = "doc_no"', "key = [1]"), "must be text in quotes, not a whole number"),
        (
            changed('key = "doc_no"', 'key = ["a", "print_status"]'),
            "columns.print_status is a key column",
        ),
        (
            changed('key = "doc_no"', 'key = ["a", "b"]\nkey_type = "bigint"'),
            "key_type is 'bigint', but the key has the columns a, b",
        ),
        (
            changed('key = "doc_no"', 'key = ["a", "b"]\nkey_separator = "--"'),
            "key_separator is '--'",
        ),
        (
            changed('key = "doc_no"', 'key = ["a", "b"]\nkey_separator = "x"'),
            "neither a letter nor a digit",
        ),
        (
            changed('document = "doc_id"', 'document = ["a", "b"]'),
            "event.document is ['a', 'b'], but the key has the columns doc_no",
        ),
        (
            changed('document = "doc_id"', 'document = ["a", "a"]').replace(
                '"doc_no"', '["x", "y"]'
            ),
            "a field for each key column",
        ),
        (
            changed('document = "doc_id"', 'document = ["a"]').replace('"doc_no"', '["x", "y"]'),
            "a field for each key column",
        ),
        (changed('document = "doc_id"', 'document = "@offset"'), "event.document is '@offset'"),
        (changed('at = "updated_at"\n', 'at = "@partition"\n'), "event.at is '@partition'"),
        (
            changed('status = "status"\norder', "order").replace(
                'key = "doc_no"', 'key = "doc_no"\ntransitions = {A = ["B"]}'
            ),
            "event.status is not set",
        ),
        ("[pipelines", "not valid TOML"),
        (GOOD.replace("DB_PASSWORD", "NOT_THERE"), "${NOT_THERE}, which is not in the environment"),
    ],
    ids=lambda value: value[-30:],
)
def test_an_invalid_setting_is_refused_with_its_name(text: str, words: str) -> None:
    with pytest.raises(errors.SettingsError) as caught:
        settings.parse(text, SECRETS)
    assert words in str(caught.value)
    assert caught.value.remedy
    assert caught.value.exit_status == 2
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "path", "expected"),
    [
        ("INSTEP__KAFKA__BOOTSTRAP", "other:1", ("kafka", "bootstrap"), "other:1"),
        (
            "INSTEP__PIPELINES__CONTRACTS__BATCH_ROWS_MAX",
            "7",
            ("pipelines", "contracts", "batch_rows_max"),
            7,
        ),
        (
            "INSTEP__PIPELINES__CONTRACTS__HISTORY",
            "false",
            ("pipelines", "contracts", "history"),
            False,
        ),
        (
            "INSTEP__PIPELINES__CONTRACTS__EVENT__AT",
            "@timestamp",
            ("pipelines", "contracts", "event", "at"),
            "@timestamp",
        ),
        (
            "INSTEP__PIPELINES__CONTRACTS__COLUMNS__EXTRA",
            "note",
            ("pipelines", "contracts", "columns", "extra"),
            "note",
        ),
        (
            "INSTEP__PIPELINES__CONTRACTS__COLUMNS__EXTRA",
            '{"field": "note", "trim": true}',
            ("pipelines", "contracts", "columns", "extra"),
            settings.ColumnMapping(field="note", trim=True),
        ),
        (
            "INSTEP__PIPELINES__CONTRACTS__COLUMNS__PRINT_STATUS__TYPE",
            "text",
            ("pipelines", "contracts", "columns", "print_status"),
            settings.ColumnMapping(field="status", type="text"),
        ),
        ("INSTEP__SPARK__CONF", '{"a": "b"}', ("spark", "conf"), {"a": "b"}),
        ("INSTEP__PIPELINES__CONTRACTS__KEY", "no", ("pipelines", "contracts", "keys"), ("no",)),
        (
            "INSTEP__PIPELINES__CONTRACTS__KEY",
            '["no"]',
            ("pipelines", "contracts", "keys"),
            ("no",),
        ),
        ("INSTEP__KAFKA__SECURITY__PROTOCOL", "SSL", ("kafka", "security", "protocol"), "SSL"),
    ],
)
def test_the_environment_overrides_the_file(
    variable: str, value: str, path: tuple[str, ...], expected: Any
) -> None:
    found: Any = settings.parse(GOOD, {**SECRETS, variable: value})
    for step in path:
        found = found[step] if isinstance(found, dict) else getattr(found, step)
    assert found == expected


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("INSTEP__KAFKA__BOOTSTRAPP", "x", "did you mean 'BOOTSTRAP'?"),
        ("INSTEP__KAFKA__BOOTSTRAP__MORE", "x", "names no setting"),
        ("INSTEP__PIPELINES__CONTRACTS__BATCH_ROWS_MAX", "many", "BATCH_ROWS_MAX"),
        ("INSTEP__SPARK__CONF", "{", "must be JSON"),
    ],
)
def test_an_environment_variable_that_matches_no_setting_is_refused(
    variable: str, value: str, words: str
) -> None:
    with pytest.raises(errors.SettingsError) as caught:
        settings.parse(GOOD, {**SECRETS, variable: value})
    assert words in str(caught.value)
    assert caught.value.remedy


def test_the_settings_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GOOD, encoding="utf-8")
    assert "contracts" in settings.load(file, SECRETS).pipelines
    assert "contracts" in settings.load(None, {**SECRETS, "INSTEP_CONFIG": str(file)}).pipelines
    monkeypatch.chdir(tmp_path)
    assert settings.load(None, {}).pipelines == {}
    file.rename(tmp_path / "instep.toml")
    assert "contracts" in settings.load(None, SECRETS).pipelines
    with pytest.raises(errors.SettingsError, match=r"gone\.toml does not exist"):
        settings.load(tmp_path / "gone.toml", {})


def test_an_unknown_pipeline_suggests_the_nearest_name() -> None:
    found = settings.parse(GOOD, SECRETS)
    with pytest.raises(errors.SettingsError, match="did you mean 'contracts'"):
        settings.pipeline(found, "contract")
    with pytest.raises(errors.SettingsError, match="declare none"):
        settings.pipeline(settings.Settings(), "contract")


def test_every_setting_has_a_help_text() -> None:
    for key, kind, _, text in settings.describe():
        assert text, key
        assert kind, key


def test_effective_settings_are_shown_without_secrets() -> None:
    text = changed("@db/contracts", "@db/contracts?sslpassword=hidden").replace(
        "[pipelines.contracts]",
        '[spark]\nconf = { "spark.hadoop.fs.s3a.secret.key" = "hidden" }\n\n[pipelines.contracts]',
    )
    found = dict(settings.effective(settings.parse(text, SECRETS)))
    assert (
        found["pipelines.contracts.target"] == "postgresql://app:***@db/contracts?sslpassword=***"
    )
    assert found["pipelines.contracts.event.order"] == "version"
    assert found["kafka.security.protocol"] == "PLAINTEXT"
    assert "secret" not in str(found.values()).replace("secret.key", "")
    assert "hidden" not in str(found)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("x", "***"),
        ("sqlite:///f.db", "sqlite:///f.db"),
        ("mysql://u:p@h/d", "mysql://u:***@h/d"),
        ("mysql://u@h/d", "mysql://u@h/d"),
        ("mysql://u:p@ss@h/d", "mysql://u:***@h/d"),
        (
            "postgresql://u:p@s/s?@h:1/d?sslpassword=x&a=b",
            "postgresql://u:***@h:1/d?sslpassword=***&a=b",
        ),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert masking.masked_url(url) == shown
    if url != "x":
        assert (
            masking.masked_text(f'no connection to "{url}": refused')
            == f'no connection to "{shown}": refused'
        )


def test_values_from_the_environment_are_never_shown() -> None:
    """Show only the file's own text, whatever the key is called."""
    text = """
    [kafka]
    bootstrap = "${HOST}:9092"
    [spark]
    conf = { "spark.hadoop.some.name" = "a-${HIDDEN}" }
    [publishers.print]
    topic = "t"
    config = { "client.id" = "${HIDDEN}" }
    [pipelines.p]
    topic = "t"
    target = "postgresql://${HIDDEN}:${HIDDEN}@${HOST}/d"
    table = "t"
    key = "k"
    event = { status = "s" }
    columns = { a = "${HIDDEN}", b = "s" }
    transitions = { A = ["${HIDDEN}", "B"] }
    """
    loaded = loading.read(text, {"HOST": "lair", "HIDDEN": "hush"}, "instep.toml")
    found = dict(loaded.shown())
    assert "hush" not in str(found)
    assert "lair" not in str(found)
    assert found["spark.conf"] == {"spark.hadoop.some.name": "a-***"}
    assert found["kafka.bootstrap"] == "***:9092"
    assert found["pipelines.p.target"] == "postgresql://***:***@***/d"
    assert found["pipelines.p.transitions"] == {"A": ["***", "B"]}
    with pytest.raises(errors.SettingsError, match=r"guarantee is '\$\{HIDDEN\}'") as caught:
        settings.parse(
            text.replace('table = "t"', 'table = "t"\nguarantee = "${HIDDEN}"'),
            {"HOST": "lair", "HIDDEN": "hush"},
        )
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.azure.account.key.x",
        "ssl.key.pem",
        "ssl.keystore.key",
        "sasl.oauthbearer.config",
        "sasl.jaas.config",
        "basic.auth.user.info",
        "aws_access_key_id",
        "spark.driver.extraJavaOptions",
        "x.service.account.private.key",
    ],
)
def test_values_with_a_secret_sounding_name_are_masked(name: str) -> None:
    declared = settings.parse(
        f'spark.conf = {{ "{name}" = "hidden" }}\n'
        f'publishers.p = {{ topic = "t", config = {{ "{name}" = "hidden" }} }}',
        {},
    )
    assert "hidden" not in str(settings.effective(declared))


def test_a_password_that_looks_like_a_url_is_masked() -> None:
    text = (
        'kafka.security = { protocol = "SASL_SSL", mechanism = "PLAIN", username = "u",'
        ' password = "hid://den" }'
    )
    assert "den" not in str(settings.effective(settings.parse(text, {})))


def test_every_value_names_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "instep.toml"
    file.write_text(
        """
        [kafka]
        bootstrap = "${HOST}:9092"
        [pipelines.contracts]
        topic = "t"
        target = "sqlite:///t.db"
        table = "t"
        key = "k"
        event = { status = "s" }
        columns = { a = "s", b = "s" }
        """,
        encoding="utf-8",
    )
    environ = {
        "HOST": "h",
        "INSTEP__SPARK__MASTER": "local[2]",
        "INSTEP__PIPELINES__CONTRACTS__COLUMNS__A": "x",
        "INSTEP__KAFKA__SECURITY": '{"protocol": "SSL", "ca": "c.pem"}',
    }
    loaded = settings.load_with_origins(file, environ)
    origins = {key: loaded.origin(key) for key, _ in settings.effective(loaded.settings)}
    assert origins["kafka.bootstrap"] == f"{file} with ${{HOST}}"
    assert (
        origins["kafka.security.ca"]
        == origins["kafka.security.protocol"]
        == "INSTEP__KAFKA__SECURITY"
    )
    assert origins["kafka.security.key"] == origins["spark.memory"] == "default"
    assert origins["spark.master"] == "INSTEP__SPARK__MASTER"
    assert origins["pipelines.contracts.topic"] == str(file)
    assert set(origins["pipelines.contracts.columns"].split(", ")) == {
        "INSTEP__PIPELINES__CONTRACTS__COLUMNS__A",
        str(file),
    }


def test_names_with_dots_need_no_quotes() -> None:
    declared = settings.parse(
        """
        [spark.conf]
        spark.speculation = "true"
        [publishers.print]
        topic = "t"
        config.acks = 1
        config.enable.idempotence = false
        """,
        {},
    )
    assert declared.spark.conf == {"spark.speculation": "true"}
    assert declared.publishers["print"].config == {"acks": 1, "enable.idempotence": False}


def test_paths_are_made_absolute() -> None:
    """Make paths absolute: Spark's tasks and its JVM may run in another folder."""
    declared = settings.parse(
        'kafka.security = { protocol = "SSL", ca = "ca.pem", certificate = "/c.pem",'
        ' key = "k.pem" }',
        {},
    )
    security = declared.kafka.security
    assert (security.ca, security.certificate, security.key) == (
        str(Path("ca.pem").absolute()),
        "/c.pem",
        str(Path("k.pem").absolute()),
    )


STREAM = """
[streams.analyze]
from = "mrp-web-etl"
to = "mrp-web-analyze"
"""


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ('sql = "SELECT * FROM records"\npython = "shop:lines"', "has both sql and python"),
        ('delete_when = "gone"', "has neither sql nor python"),
        (
            'sql = "SELECT * FROM records"\n[[pipelines.contracts.tables]]\ntable = "lines"\n'
            'key = "doc_no"\ncolumns = { version = "version" }',
            "has a transformation and further tables, which do not work together",
        ),
    ],
)
def test_a_transformation_with_contradictory_settings_is_refused(more: str, what: str) -> None:
    text = changed('engine = "resident"\n', "") + f"[pipelines.contracts.transform]\n{more}\n"
    with pytest.raises(errors.SettingsError) as caught:
        settings.parse(text, SECRETS)
    assert what in caught.value.what
    if "tables" in more:
        assert "docs/guides/write-a-spark-stream.md" in caught.value.remedy


def test_the_engine_of_a_transformation_is_not_resident() -> None:
    text = f'{GOOD}[pipelines.contracts.transform]\nsql = "SELECT * FROM records"\n'
    with pytest.raises(errors.SettingsError, match="a transformation needs Spark SQL"):
        settings.parse(text, SECRETS)


def test_a_stream_reads_from_one_topic_and_publishes_to_another() -> None:
    declared = settings.parse(STREAM, {"INSTEP__STREAMS__ANALYZE__TO": "other"})
    assert (declared.streams["analyze"].source, declared.streams["analyze"].target) == (
        "mrp-web-etl",
        "other",
    )


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ('sql = "SELECT 1"\npython = "a:b"', "has both sql and python"),
        ('dead_letters = "mrp-web-etl"', "it would never end"),
        ('dead_letters = "mrp-web-analyze"', "is the output topic"),
        ('start = "yesterday"', "streams.analyze.start"),
        ('form = "x"', "unknown key 'form' in [streams.analyze]"),
    ],
)
def test_a_stream_with_contradictory_settings_is_refused(more: str, what: str) -> None:
    with pytest.raises(errors.SettingsError, match=re.escape(what)):
        settings.parse(STREAM + more, {})


def streams(*pairs: tuple[str, str, str]) -> str:
    """Return streams between topics, one for each source, target and topic of dead letters."""
    return "".join(
        f'[streams.s{number}]\nfrom = "{source}"\nto = "{target}"\ndead_letters = "{dead}"\n'
        for number, (source, target, dead) in enumerate(pairs)
    )


@pytest.mark.parametrize(
    ("declared", "loop"),
    [
        (streams(("x", "y", "d"), ("y", "x", "d")), "streams.s0, streams.s1 bring"),
        (
            streams(("x", "y", "d"), ("a", "b", "d"), ("z", "x", "d"), ("y", "z", "d")),
            "streams.s0, streams.s3, streams.s2 bring",
        ),
        (streams(("a", "x", "d"), ("x", "y", "e"), ("e", "x", "f")), "streams.s1, streams.s2"),
    ],
)
def test_streams_that_publish_to_each_other_are_refused(declared: str, loop: str) -> None:
    with pytest.raises(errors.SettingsError, match="they would never end") as caught:
        settings.parse(declared, {})
    assert loop in caught.value.what


def test_streams_may_share_topics_as_long_as_they_end() -> None:
    declared = streams(("x", "y", "d"), ("x", "z", "d"), ("y", "e", "f"), ("z", "e", "d"))
    assert len(settings.parse(declared, {}).streams) == 4


ARCHIVES = """
[archives.one]
topic = "t"
path = "{}"
[archives.two]
topic = "t"
path = "{}"
"""


@pytest.mark.parametrize(
    ("one", "two", "where"),
    [
        ("arch", "./arch", "is"),
        ("arch", "other/../arch/", "is"),
        ("arch", str(Path("arch").absolute()), "is"),
        (f"file://{Path('arch').absolute()}", "arch", "is"),
        ("s3://bucket/a/", "s3://bucket/a", "is"),
        ("arch", "arch/two", "is below"),
        ("s3://bucket/a", "s3://bucket/a/two", "is below"),
    ],
)
def test_two_archives_in_one_folder_are_refused(one: str, two: str, where: str) -> None:
    with pytest.raises(errors.SettingsError, match=f"path {where} the folder of archives"):
        settings.parse(ARCHIVES.format(one, two), {})
    with pytest.raises(errors.SettingsError, match=f"path {where} the folder of archives"):
        settings.parse(ARCHIVES.format(two, one), {})


@pytest.mark.parametrize(("one", "two"), [("arch", "arch2"), ("s3://a/b", "s3://a/bc")])
def test_archives_may_be_beside_each_other(one: str, two: str) -> None:
    assert len(settings.parse(ARCHIVES.format(one, two), {}).archives) == 2


KPI = """
[kpis.print_kpis]
pipeline = "contracts"
table = "print_kpis"
durations = { printing = ["QUEUED", "PRINTED"] }
"""


def test_a_kpi_uses_the_events_of_its_pipeline() -> None:
    declared = settings.parse(GOOD + KPI, SECRETS)
    assert settings.kpi(declared, "print_kpis").pipeline == "contracts"
    assert settings.job_names(declared) == ["contracts", "print_kpis"]
    assert settings.any_query(declared, ["print_kpis"])


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ('topic = "t"', "has both `pipeline` and `topic`"),
        ("watermark_s = 5", "watermark_s"),
        ('start = "yesterday"', "kpis.print_kpis.start"),
        ('durations.x = ["QUEUED"]', "durations.x is ['QUEUED']"),
        ('durations.x = ["QUEUED", "QUEUED"]', "durations.x is ['QUEUED', 'QUEUED']"),
        ('event = { status = "s" }', "kpis.print_kpis.event is set, but pipeline 'contracts'"),
    ],
)
def test_a_kpi_with_contradictory_settings_is_refused(more: str, what: str) -> None:
    text = KPI.replace("durations", "durations.printing").replace("{ printing = [", "[")
    text = text.replace('"] }', '"]')
    with pytest.raises(errors.SettingsError, match=re.escape(what)):
        settings.parse(f"{GOOD}{text}{more}", SECRETS)


def test_a_kpi_of_a_pipeline_with_a_transformation_is_refused() -> None:
    transform = '[pipelines.contracts.transform]\nsql = "SELECT * FROM records"\n'
    text = changed('engine = "resident"\n', "") + transform + KPI
    with pytest.raises(errors.SettingsError, match="would count the records as they are") as caught:
        settings.parse(text, SECRETS)
    assert "[streams.NAME]" in caught.value.remedy


@pytest.mark.parametrize(
    ("kpi", "what"),
    [
        ("", "has neither `pipeline` nor `topic`"),
        ('pipeline = "contract"', "there is no pipeline 'contract'"),
        ('topic = "t"', "has no target database"),
        ('topic = "t"\ntarget = "sqlite:///k.db"', "kpis.k.event.status is not set"),
    ],
)
def test_a_kpi_needs_events_with_a_status(kpi: str, what: str) -> None:
    with pytest.raises(errors.SettingsError, match=re.escape(what)):
        settings.parse(f'{GOOD}[kpis.k]\ntable = "k"\n{kpi}', SECRETS)


def test_a_name_is_used_by_one_job_only() -> None:
    pipeline = GOOD.replace("pipelines.contracts", "pipelines.analyze")
    with pytest.raises(errors.SettingsError, match="have the same name"):
        settings.parse(pipeline + STREAM, SECRETS)


@pytest.mark.parametrize(
    ("source", "outbox", "is_shared"),
    [
        ("postgresql://b@DB:5432/print?sslmode=require", "public.instep_outbox", True),
        ("postgres://db:5432/print", "instep_outbox", True),
        ("postgresql://db:5433/print", "instep_outbox", False),
        ("postgresql://db:5432/print", "second", False),
        ("postgresql://db:5432/print", "b.instep_outbox", False),
        ("mysql://db:5432/print", "instep_outbox", False),
    ],
)
def test_an_outbox_has_one_relay(source: str, outbox: str, is_shared: bool) -> None:
    text = '[relays.a]\nsource = "postgresql://a:pw@db:5432/print"\ntopic = "t"\n'
    text += f'[relays.b]\nsource = "{source}"\noutbox = "{outbox}"\ntopic = "u"\n'
    if not is_shared:
        assert len(settings.parse(text, {}).relays) == 2
        return
    with pytest.raises(errors.SettingsError, match=r"relays.b and relays.a have the same source"):
        settings.parse(text, {})


def test_jobs_of_all_kinds_are_found_by_name() -> None:
    declared = settings.parse(GOOD + STREAM, SECRETS)
    assert settings.job_names(declared) == ["contracts", "analyze"]
    assert settings.job_kind(declared, "analyze") == "stream"
    with pytest.raises(errors.SettingsError, match="there is no pipeline or stream 'analyse'"):
        settings.job_kind(declared, "analyse")


DUE = GOOD + '\n[pipelines.contracts.due]\nQUEUED = "2h"\n'


def test_limits_are_durations_by_status() -> None:
    declared = settings.parse(DUE + 'Failed = "3d"', SECRETS)
    limits = declared.pipelines["contracts"].due_after
    assert limits == {"QUEUED": timedelta(hours=2), "Failed": timedelta(days=3)}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (DUE.replace("2h", "soon"), "due.QUEUED is 'soon', which is not a duration"),
        (DUE.replace("2h", "0s"), "due.QUEUED is '0s', which is not a duration from 1 s"),
        (DUE.replace("QUEUED", '""'), "due has an empty status"),
        (DUE.replace('\nstatus = "status"', "", 1), "due needs the event's status"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(text: str, what: str) -> None:
    with pytest.raises(errors.SettingsError, match=re.escape(what)):
        settings.parse(text, SECRETS)


def test_a_limit_needs_the_time_of_the_last_change() -> None:
    text = DUE.replace("[pipelines.contracts]", "[pipelines.contracts]\nhistory = false", 1)
    without_time = "\n".join(line for line in text.splitlines() if "updated_at" not in line)
    settings.parse(text, SECRETS)
    with pytest.raises(errors.SettingsError, match="no column stores the event's time"):
        settings.parse(without_time, SECRETS)


REDRIVE = GOOD + '\n[pipelines.contracts.redrive]\nreason = ["PARENT_MISSING"]\n'


def test_a_redrive_has_defaults() -> None:
    redrive = settings.parse(REDRIVE, SECRETS).pipelines["contracts"].redrive
    assert redrive == settings.Redrive(reason=["PARENT_MISSING"], every="5m", attempts=3, rate=100)
    assert redrive.interval == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (REDRIVE.replace("PARENT", "PARANT"), "did you mean 'PARENT_MISSING'?"),
        (REDRIVE.replace("PARENT_MISSING", "WAITS_BEHIND"), "pipelines.contracts.redrive.reason"),
        (REDRIVE.replace('"PARENT_MISSING"', ""), "redrive.reason is empty"),
        (REDRIVE + 'every = "often"', "redrive.every is 'often', which is not a duration"),
        (REDRIVE + "attempts = 0", "pipelines.contracts.redrive.attempts"),
        (REDRIVE + "rate = 0", "pipelines.contracts.redrive.rate"),
    ],
)
def test_a_redrive_without_sense_is_refused(text: str, what: str) -> None:
    with pytest.raises(errors.SettingsError, match=re.escape(what)):
        settings.parse(text, SECRETS)
