"""Test that document ids and key values convert both ways, and that ids are unique."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep.document import kinds
from instep.document.decoding import Decoder, Record
from instep.document.identity import Identity
from instep.document.mapping import KEY, Field, Mapping, Path, TargetColumn
from instep.document.reasons import Reason, Unfit

TEXT, NUMBER = (
    TargetColumn("tenant", kinds.Text(characters=40)),
    TargetColumn("no", kinds.Integer()),
)
STATUS = TargetColumn("print_status", kinds.Text())
TEXTS = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=40
)


def mapping(
    *keys: TargetColumn, documents: tuple[Path, ...] = (("id",),), separator: str = "/"
) -> Mapping:
    fields = (Field(column=STATUS, path=("status",)),)
    return Mapping(
        documents=documents,
        keys=keys,
        status=("status",),
        order=None,
        at=("@timestamp",),
        fields=fields,
        separator=separator,
    )


@given(TEXTS, st.integers(-(2**63), 2**63 - 1), st.sampled_from("/:|.-"))
def test_a_composite_key_and_its_id_can_be_converted_both_ways(
    tenant: str, number: int, separator: str
) -> None:
    known = Identity(mapping(TEXT, NUMBER, documents=(("t",), ("n",)), separator=separator))
    if separator in tenant or separator in str(number):
        with pytest.raises(Unfit, match="ID_PARTS_WRONG"):
            known.of_fields([tenant, number])
        return
    document = known.of_fields([tenant, number])
    assert (
        document
        == f"{tenant}{separator}{number}"
        == known.of_text(str(document))
        == known.of_kept(str(document))
    )
    assert known.columns(document) == (tenant, number)
    assert known.of_columns((tenant, number)) == document


@given(st.lists(TEXTS, min_size=2, max_size=2), st.lists(TEXTS, min_size=2, max_size=2))
def test_two_rows_have_two_ids_unless_a_part_holds_the_separator(
    one: list[str], other: list[str]
) -> None:
    known = Identity(mapping(TEXT, TargetColumn("area", kinds.Text())))
    ids = {known.of_columns(one), known.of_columns(other)}
    assert len(ids) == 2 or one == other or any("/" in part for part in (*one, *other))


def test_a_time_is_the_same_instant_however_it_is_written() -> None:
    known = Identity(
        mapping(NUMBER, TargetColumn("at", kinds.Timestamp()), documents=(("n",), ("at",)))
    )
    at = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
    for raw in ("2026-01-31T13:00:00.25+01:00", 1_769_860_800_250):
        assert known.of_fields([7, raw]) == "7/2026-01-31T12:00:00.250000Z"
    assert (
        known.of_columns((7, at.replace(tzinfo=None)))
        == known.of_columns((Decimal(7), at))
        == "7/2026-01-31T12:00:00.250000Z"
    )
    assert known.columns("7/2026-01-31T12:00:00.250000Z") == (7, at)
    with pytest.raises(Unfit, match="finer than a microsecond"):
        known.of_fields([7, "2026-01-31T13:00:00.1234567Z"])


def test_every_kind_of_key_part_is_supported() -> None:
    known = Identity(
        mapping(TargetColumn("u", kinds.Uuid()), TargetColumn("d", kinds.Date()), NUMBER, TEXT)
    )
    columns = (UUID(int=7), date(2026, 1, 31), -5, "a:b")
    assert known.of_columns(columns) == "00000000-0000-0000-0000-000000000007/2026-01-31/-5/a:b"
    assert known.columns(known.of_columns(columns)) == columns
    assert known.of_columns((str(UUID(int=7)), "2026-01-31", -5, "a:b")) == known.of_columns(
        columns
    )
    assert known.of_text(
        "00000000-0000-0000-0000-000000000007/2026-01-31/-5/a:b"
    ) == known.of_columns(columns)


@pytest.mark.parametrize(
    ("raw", "reason", "words"),
    [
        (
            "acme",
            Reason.ID_PARTS_WRONG,
            "id is 'acme', but the key has 2 columns: expected tenant/no",
        ),
        ("acme/7/1", Reason.ID_PARTS_WRONG, "expected tenant/no"),
        ("/7", Reason.ID_EMPTY, "id, tenant is empty"),
        ("acme/", Reason.WRONG_TYPE, "id, no is not an integer"),
        ("acme/07", Reason.WRONG_TYPE, "id, no is not an integer, but the key column is"),
        ("acme/99999999999999999999", Reason.NUMBER_OUT_OF_RANGE, "id, no"),
        ("a" * 41 + "/7", Reason.ID_TOO_LONG, "id, tenant"),
        (7, Reason.WRONG_TYPE, "the id of a composite key is text: tenant/no"),
        (None, Reason.WRONG_TYPE, "the id of a composite key is text: tenant/no"),
    ],
)
def test_an_invalid_id_is_refused_with_its_reason(raw: Any, reason: Reason, words: str) -> None:
    with pytest.raises(Unfit) as caught:
        Identity(mapping(TEXT, NUMBER)).of_field(raw)
    assert caught.value.reason is reason
    assert words in caught.value.detail


def test_parts_that_are_too_long_together_are_refused() -> None:
    wide = TargetColumn("tenant", kinds.Text())
    with pytest.raises(Unfit, match="257 characters together") as caught:
        Identity(mapping(wide, wide, documents=(("t",), ("n",)))).of_fields(["a" * 128, "b" * 128])
    assert caught.value.reason is Reason.ID_TOO_LONG


@pytest.mark.parametrize("documents", [(("t",), ("n",)), (("id",),), ((KEY,),), (("t",), (KEY,))])
def test_plain_and_escaped_records_have_the_same_id(documents: tuple[Path, ...]) -> None:
    decoder = Decoder(mapping(TEXT, NUMBER, documents=documents))
    key = b"7" if documents == (("t",), (KEY,)) else b"acme/7"
    plain = Record(
        0, 1_700_000_000_000, key, b'{"id": "acme/7", "t": "acme", "n": 7, "status": "A"}'
    )
    escaped = Record(
        1, 1_700_000_000_000, key, b'{"id": "acme\\/7", "t": "acm\\u0065", "n": 7, "status": "A"}'
    )
    deleted = Record(2, 1_700_000_000_000, b"acme/7", None)
    events, dead = decoder.decode_all([plain, escaped, deleted])
    assert [event.document for event in events] == ["acme/7"] * 3
    assert dead == []


def test_a_delete_whose_key_is_not_the_whole_id_is_a_dead_letter() -> None:
    decoder = Decoder(mapping(TEXT, NUMBER, documents=(("t",), ("n",))))
    _, dead = decoder.decode_all([Record(0, 1_700_000_000_000, b"7", None)])
    assert [(one.reason, one.detail) for one in dead] == [
        (Reason.ID_PARTS_WRONG, "the key is '7', but the key has 2 columns: expected tenant/no")
    ]


@pytest.mark.parametrize(
    ("kind", "raw", "text", "stored"),
    [
        (kinds.Date(), "2026-05-01", "2026-05-01", date(2026, 5, 1)),
        (kinds.Timestamp(), "2026-05-01T10:00+02:00", "2026-05-01T08:00:00Z", None),
        (kinds.Numeric(10, 2), Decimal("1.50"), "1.5", Decimal("1.50")),
        (kinds.Numeric(10, 2), 0, "0", Decimal("0.00")),
        (kinds.Boolean(), True, "true", True),
        (kinds.Boolean(), False, "false", 0),  # SQLite returns numbers
    ],
)
def test_the_only_key_column_may_have_values_with_several_forms(
    kind: Any, raw: Any, text: str, stored: Any
) -> None:
    known = Identity(mapping(TargetColumn("k", kind), documents=(("k",),)))
    stored = datetime(2026, 5, 1, 8, tzinfo=UTC) if stored is None else stored

    assert known.is_text_form
    assert known.of_field(raw) == known.of_text(text) == known.of_columns([stored]) == text
    assert known.columns(text) == (stored,)
    assert known.of_kept(text) == text


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (kinds.Numeric(10, 2), "one", Reason.NUMBER_OUT_OF_RANGE),
        (kinds.Numeric(10, 2), "1e999999999", Reason.NUMBER_OUT_OF_RANGE),
        (kinds.Numeric(10, 2), "NaN", Reason.NUMBER_OUT_OF_RANGE),
        (kinds.Boolean(), "True", Reason.WRONG_TYPE),
        (kinds.Date(), "2026-13-01", Reason.NOT_A_TIME),
    ],
)
def test_text_that_is_no_value_of_the_key_is_refused(kind: Any, text: str, reason: Reason) -> None:
    known = Identity(mapping(TargetColumn("k", kind), documents=((KEY,),)))

    with pytest.raises(Unfit) as caught:
        known.of_text(text)
    assert caught.value.reason is reason
