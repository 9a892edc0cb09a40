"""Ids of ads are those of the browser: the vectors that are public, and what is refused."""

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.client.ads import PARTS, ad_id
from kanon.client.values import value_id
from tests.paths import ROOT

OWNER, LOGIC, AD = "https://ad_tech_a.com/", "https://ad_tech_a.com/bid.js", "https://ad_tech_a.com/ad"
SELECTED = re.compile(rb"([\x00\x01])\x00\x00\x00(.)", re.DOTALL)
"""Whether an id is there, and its length, in the one kind that writes them."""

VECTORS: list[dict[str, Any]] = json.loads((ROOT / "tests/vectors/kanon_ids.json").read_text())
NO_OWNER = {"AdBid empty", "BuyerAndSellerReportId empty urls", "BuyerAndSellerReportId ghost empty urls"}
"""Vectors of ads without a URL, which no browser joins."""
NO_ARGUMENTS = 2
"""Vectors of which a part has a zero byte: no program can be given it."""


def _parts(key: bytes) -> tuple[str, list[str | None]]:
    kind, _, rest = key.decode("latin-1").partition("\n")
    if kind != "SelectedBuyerAndSellerReportId":
        return kind, list(rest.split("\n", len(PARTS[kind]) - 1))
    *owned, ids = rest.split("\n", 3)
    found: list[str | None] = []
    left = ids.encode("latin-1")
    while match := SELECTED.match(left):
        size = match[2][0]
        found.append(left[5 : 5 + size].decode() if match[1] == b"\1" else None)
        left = left[5 + size + 1 :]
    return kind, [*owned, *found]


def test_ids_are_those_of_the_public_vectors() -> None:
    kinds = set()
    for vector in VECTORS:
        key = bytes.fromhex(vector["key_hex"])
        if key.partition(b"\n")[0].decode() not in PARTS:  # a value
            assert value_id(key) == vector["b64url_nopad"]
            continue
        kind, parts = _parts(key)
        kinds.add(kind)
        assert ad_id(kind, *parts) == vector["b64url_nopad"], vector["name"]
    assert kinds == set(PARTS)


def test_the_command_prints_the_ids_of_all_vectors_but_those_of_no_ad() -> None:
    refused, unsayable, said = set(), 0, 0
    for vector in VECTORS:
        kind, parts = _parts(key) if (key := bytes.fromhex(vector["key_hex"])).count(b"\n") else ("", [key.decode()])
        arguments = [*(["--ad", kind] if kind else []), *("-" if part is None else part for part in parts)]
        if any("\0" in each for each in arguments):
            unsayable += 1
            continue
        found = CliRunner().invoke(app, ["set-id", *arguments])
        if found.exit_code:
            assert "the owner does not begin with https://" in found.output
            refused.add(vector["name"])
        else:
            assert found.output.split() == [vector["b64url_nopad"]]
            said += 1
    assert (refused, unsayable, said) == (NO_OWNER, NO_ARGUMENTS, len(VECTORS) - len(NO_OWNER) - NO_ARGUMENTS)


def test_the_command_prints_the_ids_of_several_values() -> None:
    values = CliRunner().invoke(app, ["set-id", "a shared value", "2"])
    assert values.output.split() == [value_id("a shared value"), value_id("2")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ad", "Adbid", OWNER, LOGIC, AD], "there is no kind Adbid (did you mean AdBid?)"),
        (["--ad", "AdBid", OWNER, LOGIC], "AdBid is made of owner, bidding logic URL, render URL"),
        (["--ad", "AdBid", OWNER, LOGIC, AD, AD], "AdBid is made of"),
        (["--ad", "AdBid", "https://ad_tech_a.com", LOGIC, AD], "the owner is an origin and a slash"),
        (["--ad", "AdBid", OWNER, "bid.js", AD], "the bidding logic URL does not begin with https://"),
        (["--ad", "NameReport", OWNER, LOGIC, AD, "-"], "NameReport is made of"),
        (["\udc80"], "UTF-8"),
    ],
)
def test_what_is_no_ad_is_refused_with_what_to_change(arguments: list[str], message: str) -> None:
    refused = CliRunner().invoke(app, ["set-id", *arguments])
    assert refused.exit_code == 2
    assert message in refused.output
