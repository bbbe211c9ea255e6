"""Test files as records, and the messages about a wrong line."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep import errors
from instep.emit import files
from instep.emit.outgoing import OutgoingRecord

WORDS = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=40
)


def read(
    text: str | bytes,
    file_format: files.Format = "jsonl",
    *,
    key: str = "doc_id",
    integers: str = "",
    **named: Any,
) -> list[OutgoingRecord]:
    stream = io.BytesIO(text.encode() if isinstance(text, str) else text)
    where = files.Key(tuple(key.split(",")), integers=frozenset(integers.split(",")))
    return list(files.read(stream, file_format, key=where, **named))


def value(record: OutgoingRecord) -> Any:
    assert record.value is not None
    return json.loads(record.value)


def test_a_json_line_is_sent_unchanged() -> None:
    line = '{"doc_id": "d-1",  "status":"QUEUED", "version": 3, "note": "🖨️"}'
    assert read(f"{line}\n") == [OutgoingRecord(b"d-1", line.encode())]


def test_blank_lines_a_byte_order_mark_and_a_missing_last_newline_are_accepted() -> None:
    assert [
        record.key for record in read(b'\xef\xbb\xbf{"doc_id": "a"}\r\n\r\n  \n{"doc_id": "b"}')
    ] == [b"a", b"b"]
    assert read("") == []


def test_another_field_can_be_the_key_and_may_be_an_integer() -> None:
    assert [record.key for record in read('{"id": 7}\n{"id": -2}\n{"id": "x"}', key="id")] == [
        b"7",
        b"-2",
        b"x",
    ]


def test_a_delete_has_no_value() -> None:
    assert read('{"doc_id": "a", "$delete": true}') == [OutgoingRecord(b"a", None)]
    assert read('{"order": {"id": 7}, "$delete": true}', key="order.id") == [
        OutgoingRecord(b"7", None)
    ]
    with pytest.raises(errors.SettingsError, match="allows no other fields than the key"):
        read('{"order": {"id": 7, "status": "A"}, "$delete": true}', key="order.id")


def test_dots_in_the_key_field_name_a_nested_field() -> None:
    line = '{"order": {"id": 7, "lines": []}, "status": "A"}'
    assert read(line, key="order.id") == [OutgoingRecord(b"7", line.encode())]
    assert read('{"order.id": "x", "order": {"id": 7}}', key="order.id")[0].key == b"x"
    for wrong in ('{"order": 7}', '{"order": {}}', '{"status": "A"}'):
        with pytest.raises(errors.SettingsError, match=r"no field 'order\.id'"):
            read(wrong, key="order.id")


def test_dots_in_a_csv_header_name_a_nested_field() -> None:
    found = read("order.id,order.total.net,status\nC-1,12,A\nC-2,,B\n", "csv", key="order.id")
    assert [record.key for record in found] == [b"C-1", b"C-2"]
    assert value(found[0]) == {"order": {"id": "C-1", "total": {"net": 12}}, "status": "A"}
    assert value(found[1]) == {"order": {"id": "C-2"}, "status": "B"}
    with pytest.raises(errors.SettingsError, match=r"the header has 'order' and 'order\.id'"):
        read("order,order.id\n1,2\n", "csv", key="order.id")


def test_ids_of_a_csv_file_may_be_integers() -> None:
    found = read("doc_id,x\n12,y\n9223372036854775807,z\n", "csv", integers="doc_id")
    assert [(record.key, value(record)["doc_id"]) for record in found] == [
        (b"12", 12),
        (b"9223372036854775807", 2**63 - 1),
    ]
    with pytest.raises(
        errors.SettingsError, match="line 2: 'doc_id' is '012', but ids are integers here"
    ):
        read("doc_id,x\n012,y\n", "csv", integers="doc_id")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"doc_id": "b"', "not valid JSON"),
        ("[1]", "not a JSON object"),
        ("42", "not a JSON object"),
        ('{"status": "A"}', "no field 'doc_id'"),
        ('{"docid": "b"}', "did you mean 'docid'"),
        ('{"doc_id": true}', "must be text or an integer"),
        ('{"doc_id": null}', "must be text or an integer"),
        ('{"doc_id": 1.5}', "must be text or an integer"),
        ('{"doc_id": ""}', "must not be empty"),
        ('{"doc_id": "' + "x" * 256 + '"}', "at most 255"),
        ('{"doc_id": "b", "$delete": false}', r"\$delete allows no other fields than the key"),
        (
            '{"doc_id": "b", "$delete": true, "status": "A"}',
            r"\$delete allows no other fields than the key",
        ),
    ],
)
def test_reading_stops_at_a_wrong_line_and_names_it(line: str, says: str) -> None:
    stream = io.BytesIO(f'{{"doc_id": "a"}}\n\n{line}\n{{"doc_id": "c"}}\n'.encode())
    records = files.read(stream, "jsonl", name="events.jsonl")
    assert next(records).key == b"a"
    with pytest.raises(errors.SettingsError, match=rf"events\.jsonl, line 3: .*{says}"):
        next(records)
    assert next(records, None) is None


def test_bytes_that_are_not_utf8_are_named() -> None:
    with pytest.raises(errors.SettingsError, match="line 1: not valid JSON"):
        read(b'{"doc_id": "\xff"}')
    with pytest.raises(errors.SettingsError, match="line 1: not valid JSON"):
        read(b'{"doc_id": "a", "note": "\xff"}')
    with pytest.raises(errors.SettingsError, match=r"line \d: not UTF-8"):
        read(b"doc_id,note\na,\xff\n", "csv")


@given(
    st.lists(
        st.dictionaries(
            WORDS, st.none() | st.booleans() | st.integers(-(2**53), 2**53) | WORDS, max_size=4
        ),
        max_size=8,
    )
)
def test_any_objects_are_read_unchanged(objects: list[dict[str, Any]]) -> None:
    rows = [{**fields, "doc_id": f"d{number}"} for number, fields in enumerate(objects)]
    rows = [{name: cell for name, cell in row.items() if name != "$delete"} for row in rows]
    found = read("".join(f"{json.dumps(row)}\n" for row in rows))
    assert [value(record) for record in found] == rows
    assert [record.key for record in found] == [row["doc_id"].encode() for row in rows]


def test_a_csv_row_becomes_an_object() -> None:
    found = read(
        'doc_id,status,version,note\r\nd-1,QUEUED,3,\r\nd-2,"a ""b"",\nc",-1,012\r\n', "csv"
    )
    assert [record.key for record in found] == [b"d-1", b"d-2"]
    assert value(found[0]) == {"doc_id": "d-1", "status": "QUEUED", "version": 3}
    assert value(found[1]) == {"doc_id": "d-2", "status": 'a "b",\nc', "version": -1, "note": "012"}


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("0", 0),
        ("12", 12),
        ("-3", -3),
        ("-0", "-0"),
        ("012", "012"),
        ("+3", "+3"),
        ("1.0", "1.0"),
        ("1e3", "1e3"),
        (" 1", " 1"),
        ("٣", "٣"),
        ("9" * 18, int("9" * 18)),
        ("9" * 19, "9" * 19),
    ],
)
def test_only_integers_as_json_writes_them_become_integers(cell: str, expected: str | int) -> None:
    assert value(read(f"doc_id,x\na,{cell}\n", "csv")[0])["x"] == expected


def test_the_key_of_a_csv_row_stays_text() -> None:
    found = read("doc_id,x\n12,y\n", "csv")[0]
    assert (found.key, value(found)["doc_id"]) == (b"12", "12")


def test_a_byte_order_mark_and_blank_rows_in_csv_are_accepted() -> None:
    assert [record.key for record in read(b"\xef\xbb\xbfdoc_id,x\n\na,1\n\n", "csv")] == [b"a"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_lines_may_end_in_any_way(end: str) -> None:
    text = end.join(["doc_id,x", 'a,"1', '2"', "b,2", ""])
    assert [(record.key, value(record)["x"]) for record in read(text, "csv")] == [
        (b"a", f"1{end}2"),
        (b"b", 2),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: no column 'doc_id'"),
        ("docid,x\na,1\n", "line 1: no column 'doc_id'; did you mean 'docid'"),
        ("doc_id,x,x\n", "line 1: the header names 'x' twice"),
        ("doc_id,\n", "line 1: a column has no name"),
        ("doc_id,x\na,1\nb\n", "line 3: 1 cells, but the header has 2"),
        ("doc_id,x\na,1,2\n", "line 2: 3 cells, but the header has 2"),
        ("doc_id,x\n,1\n", "line 2: no field 'doc_id'"),
        ('doc_id,x\na,"1\n', "not valid CSV"),
        ('doc_id,x\na,"1"2\n', "line 2: not valid CSV"),
    ],
)
def test_invalid_csv_is_reported_with_its_line(text: str, says: str) -> None:
    with pytest.raises(errors.SettingsError, match=says):
        read(text, "csv")


@given(st.lists(st.tuples(WORDS, WORDS), max_size=8))
def test_any_csv_cells_are_read_unchanged(rows: list[tuple[str, str]]) -> None:
    def quoted(cell: str) -> str:
        return '"' + cell.replace('"', '""') + '"'

    found = read(
        "doc_id,x\n" + "".join(f"{quoted(key)},{quoted('#' + cell)}\n" for key, cell in rows), "csv"
    )
    assert [(record.key.decode(), value(record)["x"]) for record in found] == [
        (key, "#" + cell) for key, cell in rows
    ]


def test_the_stream_is_read_lazily_and_stays_open() -> None:
    class Endless(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            chunk = (b"doc_id,x\n" + b"a,1\n" * len(buffer))[: len(buffer)]
            buffer[: len(chunk)] = chunk
            return len(chunk)

    stream = io.BufferedReader(Endless(), 64)
    assert next(files.read(stream, "csv")).key == b"a"
    assert not stream.closed
    stream.detach()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.jsonl", "jsonl"),
        ("a.NDJSON", "jsonl"),
        ("dir.csv/a.json", "jsonl"),
        ("a.csv", "csv"),
        ("-", "jsonl"),
    ],
)
def test_the_suffix_decides_the_format(path: str, expected: str) -> None:
    assert files.format_of(path) == expected


def test_an_unknown_suffix_names_the_known_ones() -> None:
    with pytest.raises(errors.SettingsError, match=r"events\.xml") as caught:
        files.format_of("events.xml")
    assert ".jsonl" in caught.value.remedy


def test_the_parts_of_a_composite_key_are_joined() -> None:
    line = '{"tenant": "acme", "order": {"no": 7}, "status": "A"}'
    assert read(line, key="tenant,order.no") == [OutgoingRecord(b"acme/7", line.encode())]
    assert read(
        '{"tenant": "acme", "order": {"no": 7}, "$delete": true}', key="tenant,order.no"
    ) == [OutgoingRecord(b"acme/7", None)]
    for wrong in (
        '{"tenant": "acme", "$delete": true}',
        '{"tenant": "acme", "order": {"no": 7, "x": 1}, "$delete": true}',
    ):
        with pytest.raises(errors.SettingsError):
            read(wrong, key="tenant,order.no")
    (found,) = read("tenant,no,status\n007,12,A\n", "csv", key="tenant,no", integers="no")
    assert (found.key, value(found)) == (b"007/12", {"tenant": "007", "no": 12, "status": "A"})
    with pytest.raises(errors.SettingsError, match="no column 'no'"):
        read("tenant,status\n007,A\n", "csv", key="tenant,no")
