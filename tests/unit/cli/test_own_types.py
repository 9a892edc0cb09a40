"""``--type`` and ``--types``: valid and invalid types."""

import json
import re
from pathlib import Path

import pytest
from typer import BadParameter
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.cli.options import own_types
from kanon.gate.types import read_types

ONE, OTHER = '{"k": 20, "window": 168, "profile": "sharp-2"}', '{"k": 100, "window": 24, "profile": "published"}'


def test_without_either_option_there_are_no_own_types() -> None:
    assert own_types(None, None, 3600) is None
    assert own_types([], None, 3600) is None


def test_one_type_takes_the_name_that_the_command_gives_it() -> None:
    own = own_types([ONE], None, 60, name="fledge")
    assert own is not None
    assert own.types == read_types(f'{{"fledge": {ONE}}}', 60)
    assert read_types(own.document, 60) == own.types


def test_several_types_are_numbered_in_their_order() -> None:
    own = own_types([OTHER, ONE], None, 3600, name="type")
    assert own is not None
    assert [(name, type_.parameters.k) for name, type_ in own.types.items()] == [("type-1", 100), ("type-2", 20)]


def test_a_file_holds_types_by_name(tmp_path: Path) -> None:
    (file := tmp_path / "types.json").write_text(f'\ufeff{{"b": {ONE},\n "a": {OTHER}}}', encoding="utf-8")
    own = own_types(None, file, 3600)
    assert own is not None
    assert list(own.types) == ["b", "a"]
    assert json.loads(own.document) == {"b": json.loads(ONE), "a": json.loads(OTHER)}


def test_an_epsilon_written_as_a_number_stays_the_decimal_that_is_written() -> None:
    law = '{"shape": "two-sided", "epsilon": 0.9, "truncation": 15}'
    own = own_types([f'{{"k": 50, "window": 24, "laws": {{"threshold": {law}, "query": {law}}}}}'], None, 60)
    assert own is not None
    assert str(own.types["fledge"].parameters.query_law.epsilon) == "9/10"


@pytest.mark.parametrize(
    ("given", "content", "message"),
    [
        ([ONE], "{}", "give --type or --types, not both"),
        (["{"], None, "not valid JSON: Expecting property name"),
        (['{"k": 20, "k": 30}'], None, "not valid JSON: a key is given twice"),
        (["[" * 100_000], None, "not valid JSON: "),
        (['{"k": 1e999, "window": 24, "profile": "sharp"}'], None, "the type document is not valid JSON: NaN and Inf"),
        (["20"], None, "type 'fledge': Input should be"),
        (['{"k": 20, "window": 24, "profile": "sharpest"}'], None, "not 'sharpest' (did you mean sharp?)"),
        ([ONE, '{"k": 0, "window": 24, "profile": "sharp"}'], None, "type 'fledge-2': k: Input should be greater"),
        (None, "[]", "the type document must be a JSON object with at least one type"),
        (None, '{"Upper": {}}', "type name 'Upper' must match"),
        (None, b"\xff", "types.json cannot be read: not UTF-8 text"),
        (None, None, "types.json cannot be read: No such file or directory"),
    ],
)
def test_an_invalid_type_is_refused(
    tmp_path: Path, given: list[str] | None, content: str | bytes | None, message: str
) -> None:
    file = tmp_path / "types.json"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadParameter, match=re.escape(message)):
        own_types(given, file if given is None or content is not None else None, 3600)


@pytest.mark.slow
def test_the_audit_takes_types_from_a_file(tmp_path: Path) -> None:
    laws = {role: {"shape": "two-sided", "epsilon": "0.75", "truncation": 5} for role in ("threshold", "query")}
    types = {name: {"k": k, "window": 12, "laws": laws, "client_bits": 32} for name, k in (("one", 12), ("two", 13))}
    (file := tmp_path / "types.json").write_text(json.dumps(types))
    asked = ["audit", "--types", str(file), "--trials", "200", "--service-trials", "0", "--seed", "1", "--json"]
    ran = CliRunner().invoke(app, asked)
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert {check["subject"] for check in report["checks"]} >= {"one", "two"}
