"""``kanon cost`` on the command line."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kanon.cli.main import app
from kanon.cost import lists
from kanon.cost.billing import bill, read_prices
from kanon.cost.workload import Workload
from tests.paths import ROOT
from tests.unit.examples import PUBLISHED


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"}).invoke(app, ["cost", *arguments])


@pytest.mark.slow
def test_the_json_has_every_line_and_its_sum() -> None:
    shown = json.loads(run("--joins", "20", "--queries", "1", "--json").stdout)
    assert sum(line["dollars"] for line in shown["lines"]) == pytest.approx(shown["dollarsAMonth"])
    assert shown["dollarsAMillionJoins"] == pytest.approx(shown["dollarsAMonth"] / (20 * 730 * 3600 / 1e6))
    assert shown["alternatives"]["one join a request"] == shown["dollarsAMonth"]
    assert shown["prices"]["region"] == "us-east-1"


@pytest.mark.slow
def test_the_table_has_the_same_total_at_full_width() -> None:
    shown = json.loads(run("--joins", "20", "--json").stdout)
    text = run("--joins", "20").stdout
    assert f"Total: ${shown['dollarsAMonth']:,.2f} a month" in text
    assert "one item a client and hour, counted by queries (no privacy)" in text


@pytest.mark.slow
def test_the_number_of_slots_follows_from_the_workload() -> None:
    assert json.loads(run("--joins", "3000", "--json").stdout)["slots"] == 16
    assert json.loads(run("--joins", "500000", "--batch", "500", "--popularity", "0", "--json").stdout)["slots"] > 16
    assert json.loads(run("--joins", "3000", "--slots", "64", "--json").stdout)["slots"] == 64


def test_a_plan_that_cannot_finish_a_step_is_refused_with_what_to_change() -> None:
    ran = run("--joins", "20000", "--batch", "500", "--slots", "1")
    assert ran.exit_code == 2
    assert "with 1 slot a step never finishes" in ran.output
    assert re.search(r"What helps: at least \d+ slots", " ".join(ran.output.split()))


def test_the_table_of_other_systems_has_the_loads_and_what_each_system_assumes() -> None:
    lines = run("--table", "elsewhere").stdout.splitlines()
    rows = json.loads(run("--table", "elsewhere", "--json").stdout)
    assert [line.partition(" |")[0] for line in lines[4:8]] == [f"| {row['load']}" for row in rows]
    assert [line.partition("**: ")[0] for line in lines[9:]] == [f"- **{name}" for name in rows[0]["elsewhere"]]


@pytest.mark.slow
def test_the_values_of_a_listed_type_are_in_the_bill_and_of_another_type_are_refused() -> None:
    type_ = {"k": 50, "window": 720, "profile": "published"}
    plain, listed = json.dumps(type_), json.dumps({**type_, "listed": True})

    def dollars(*options: str) -> float:
        return float(json.loads(run("--batch", "100", "--json", "--type", *options).stdout)["dollarsAMonth"])

    assert dollars(plain) < dollars(listed) < dollars(listed, "--value-bytes", "512")
    assert dollars(listed) == dollars(listed, "--value-bytes", "32")
    ran = run("--type", plain, "--value-bytes", "32")
    assert ran.exit_code == 2
    assert "not listed" in ran.output
    assert "between 0 and 512" in run("--type", listed, "--value-bytes", "513").output


def test_an_own_type_and_own_prices_change_the_bill(tmp_path: Path) -> None:
    usual = json.loads(run("--json").stdout)["dollarsAMonth"]
    large = run("--type", '{"k": 1000, "window": 720, "profile": "published"}', "--sets", "100", "--json")
    assert json.loads(large.stdout)["lines"]
    source = ROOT / "shared" / "kanon" / "cost" / "prices.json"
    document = json.loads(source.read_text())
    document["prices"]["apigateway.http"]["usd"] = 2.0
    (path := tmp_path / "own.json").write_text(json.dumps(document))
    assert json.loads(run("--prices", str(path), "--json").stdout)["dollarsAMonth"] == pytest.approx(usual + 26.28)


def test_a_load_without_joins_has_no_price_of_a_join() -> None:
    shown = json.loads(run("--joins", "0", "--queries", "1", "--json").stdout)
    assert shown["dollarsAMillionJoins"] is None
    assert "a million joins" not in run("--joins", "0").stdout


@pytest.mark.parametrize(("table", "bars"), [("scale", 9), ("reports", 12)])
def test_a_table_is_markdown_or_json(table: str, bars: int) -> None:
    lines = run("--table", table).stdout.splitlines()
    rows = json.loads(run("--table", table, "--json").stdout)
    assert len(rows) == len(lines) - 4 == 18
    assert {line.count("|") for line in lines[2:]} == {bars}


def test_reports_without_jobs_name_no_job() -> None:
    told = run("--joins", "0", "--reports", "5", "--jobs", "0").stdout
    assert "5 reports a day of 1,300 bytes. No jobs.\n" in told
    assert "It takes about" not in told
    assert "Beyond a limit" in run("--joins", "0", "--reports", "1e12").stdout
    assert "Beyond a limit" not in run("--joins", "0", "--reports", "1e12", "--jobs", "0").stdout


def test_the_dollars_of_the_guide_are_those_of_the_command() -> None:
    def dollars(options: str) -> float:
        return float(json.loads(run(*options.split(), "--json").stdout)["dollarsAMonth"])

    page = " ".join((ROOT / "docs" / "guides" / "cost.md").read_text().split())
    whole, rest, load = re.findall(r"(\$\d+) a month, (\$\d+) without the queries: `kanon cost (.+?)`", page)[0]
    assert (whole, rest) == (f"${dollars(load):.0f}", f"${dollars(load.replace('--queries 20 ', '')):.0f}")
    stated = re.findall(r"about (\$\d+) at ten joins a second, of which (\$[\d.]+) is .+?, and (\$\d+) at a", page)
    ten, thousand = (bill(lists.usage(Workload(PUBLISHED, joins, value=32)), read_prices()) for joins in (10, 1000))
    watched = dict(ten.by_service())["CloudWatch"]
    assert stated == [(f"${ten.total:.0f}", f"${watched:.2f}", f"${thousand.total:.0f}")]
