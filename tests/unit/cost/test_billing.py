"""A bill is quantities times prices, and a file of another form is refused with what to change."""

import json
from pathlib import Path

import pytest

from kanon.cost.billing import CostError, Price, Prices, bill, read_measured, read_prices

PRICES = Prices(
    "2026-01-02",
    "somewhere",
    {
        "a.writes": Price("A", "writes", 1_000_000, 0.5),
        "a.reads": Price("A", "reads", 1_000, 0.1),
        "b.keys": Price("B", "keys", 1, 3.0),
    },
)


def test_a_line_is_priced_by_the_tier_of_its_quantity() -> None:
    made = bill({"a.writes": 4_000_000, "a.reads": 500, "b.keys": 0}, PRICES)
    assert [(line.name, line.dollars) for line in made.lines] == [("a.writes", 2.0), ("a.reads", 0.05)]
    assert made.total == pytest.approx(2.05)
    assert dict(made.by_service()) == {"A": pytest.approx(2.05)}


def test_a_quantity_without_a_price_is_refused() -> None:
    with pytest.raises(CostError, match=r"no price for c\.d: add it"):
        bill({"c.d": 1.0}, PRICES)


def test_every_price_of_the_package_has_a_source_and_the_file_a_date() -> None:
    prices = read_prices()
    assert prices.region == "us-east-1"
    path = Path(__file__).parents[3] / "shared" / "kanon" / "cost" / "prices.json"
    document = json.loads(path.read_text())
    assert document["noted"] == prices.noted
    vendors = ("https://aws.amazon.com/", "https://cloud.google.com/")
    assert all(entry["source"].startswith(vendors) for entry in document["prices"].values())
    # The prices that decide most bills, in dollars a million.
    listed = {name: price.usd / price.per * 1e6 for name, price in prices.by_name.items()}
    assert listed["dynamodb.write"] == 5 * listed["dynamodb.read"] == pytest.approx(0.625)
    assert (listed["apigateway.http"], listed["apigateway.rest"]) == pytest.approx((1.0, 3.5))


def test_every_measured_value_names_its_command_or_says_that_it_is_an_assumption() -> None:
    path = Path(__file__).parents[3] / "shared" / "kanon" / "cost" / "measured.json"
    for name, entry in json.loads(path.read_text())["values"].items():
        assert entry["from"].startswith(("make ", "python -m bench", "tests/", "assumption")), name
        assert entry["unit"], name


def edited(tmp_path: Path, name: str, change: object) -> Path:
    source = Path(__file__).parents[3] / "shared" / "kanon" / "cost" / name
    document = json.loads(source.read_text())
    change(document)  # type: ignore[operator]
    (path := tmp_path / name).write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("noted"),
        lambda d: d.update(noted="yesterday"),
        lambda d: d.update(prices=[1]),
        lambda d: d["prices"]["sqs.requests"].pop("per"),
        lambda d: d["prices"]["sqs.requests"].update(per=0),
        lambda d: d["prices"]["sqs.requests"].update(usd=-1),
        lambda d: d["prices"]["sqs.requests"].update(usd="0.4"),
        lambda d: d["prices"]["sqs.requests"].update(usd=True),
    ],
)
def test_a_price_file_of_another_form_is_refused(tmp_path: Path, change: object) -> None:
    with pytest.raises(CostError, match="is not a price file: it needs noted"):
        read_prices(edited(tmp_path, "prices.json", change))


def test_measured_values_of_another_form_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CostError, match="lacks join_ms: start from a copy"):
        read_measured(edited(tmp_path, "measured.json", lambda d: d["values"].pop("join_ms")))
    with pytest.raises(CostError, match="each with a value"):
        read_measured(edited(tmp_path, "measured.json", lambda d: d["values"].update(join_ms=2)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON: Expecting property name"),
        (b"[]", "must be a JSON object"),
        (b"\xff", "cannot be read: it is not UTF-8 text$"),
        (None, "cannot be read: No such file or directory$"),
    ],
)
def test_a_file_that_is_not_a_json_object_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content)
    for read in (read_prices, read_measured):
        with pytest.raises(CostError, match=rf"file\.json {message}"):
            read(path)
