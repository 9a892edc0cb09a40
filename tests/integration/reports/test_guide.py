"""The guide and the proofs of reports: every command runs, every number is right, every named test exists."""

import re
import shlex
from fractions import Fraction

import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.reports import avro, job, shared_info
from kanon.reports.errors import Counter
from kanon.reports.job import threshold
from kanon.reports.payload import Contribution, encode, private_keys
from tests.paths import ROOT
from tests.unit.reports import made

FILES = (ROOT / "docs/guides/reports.md").read_text().partition("\n## Files")[2].partition("\n## ")[0]
"""The section on files of one's own."""
PROOFS = ROOT / "docs/proofs/reports.md"


def commands():
    blocks = re.findall(r"```sh\n(.*?)```", FILES, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("kanon ")]


def test_every_command_of_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.time", lambda: made.NOW)
    ran = 0
    for line in commands():
        if ran == 1:  # keys are there: clients send reports
            send(tmp_path)
        told = CliRunner().invoke(app, shlex.split(line)[1:])
        assert told.exit_code == 0, (line, told.output)
        ran += 1
    assert ran >= 7
    assert avro.read_summary(tmp_path / "found-1-of-1.avro")
    declared = [fact.bucket for fact in avro.read_summary(tmp_path / "summary-1-of-1.avro")]
    assert declared == [made.key16(key) for key in (1, 2, 0x6B657931)]


def send(folder):
    [(key_id, key)] = private_keys((folder / "private-keys.json").read_text()).items()
    (folder / "reports").mkdir()
    infos = [made.info(number).text() for number in range(20)]
    cleartext = encode([Contribution(1, 65_536)], made.LAYOUT)
    reports = [avro.Report(made.seal(cleartext, key.public_key(), info), key_id, info) for info in infos]
    avro.write_reports(folder / "reports/part-1.avro", reports)
    (folder / "keys.txt").write_text("1\n0x2\nkey1\n")


def test_the_guide_names_every_counter_and_no_other():
    named = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", FILES))
    only_of_old_shards = {"ATTRIBUTION_REPORT_TO_MISMATCH", "REPORTING_SITE_MISMATCH"}
    assert named == {counter.value for counter in Counter} - only_of_old_shards
    assert shared_info.APIS


def test_the_thresholds_of_the_proofs_equal_those_of_the_code():
    rows = re.findall(
        r"^\| (\d+), (1e-\d) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", PROOFS.read_text(), re.MULTILINE
    )
    assert len(rows) == 4
    for epsilon, delta, *written in rows:
        budget = Fraction(epsilon), Fraction(delta), 65_536
        computed = [threshold(*budget), *(threshold(*budget, "paper", sparsity) for sparsity in (1, 20, 400))]
        assert [int(number.replace(",", "")) for number in written] == computed


def test_the_numbers_of_the_guide_equal_those_of_the_code():
    ten = job.PrivacyParameters("discover", Fraction(10), Fraction("1e-8"))
    assert f"{ten.threshold:,}" in FILES
    assert f"{ten.standard_deviation:,.0f}" in FILES
    assert f"{ten.standard_deviation * 10:,.0f}/ε" in FILES


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", PROOFS.read_text()))))
def test_a_test_that_the_proofs_name_exists(name):
    assert (ROOT / name).is_file()
