"""The guide of reports: its return codes, its job and its limits are those of the code."""

import json
import re
from fractions import Fraction

from kanon.reports.collecting import MOST_INFO, MOST_PAYLOAD
from kanon.reports.payload import MOST_SLOTS, MOST_UNUSUAL
from kanon.reports.service.bodies import read_request
from kanon.reports.shared_info import host_of
from kanon.reports.storage.budgets import MOST_ROWS
from tests.infrastructure.template import ROOT
from tests.integration.reports.aggregation import DELTA_CAP

GUIDE = (ROOT / "docs" / "guides" / "reports.md").read_text()
API = (ROOT / "docs" / "reference" / "api.md").read_text()
SOURCES = sorted((ROOT / "shared" / "kanon" / "reports").rglob("*.py"))
MORE = {"errors", "mapping", "partitions"}
"""Modules beside those of the service whose errors end a job."""


def test_the_guide_names_every_return_code_and_no_other() -> None:
    table = GUIDE.partition("### Return codes")[2].partition("\n##")[0]
    named = set(re.findall(r"^\| `([A-Z_]+)` \|", table, re.MULTILINE))
    service = [path for path in SOURCES if path.parent.name in ("service", "storage") or path.stem in MORE]
    code = "\n".join(path.read_text() for path in [*service, ROOT / "shared/kanon/reports/shared_info.py"])
    raised = set(re.findall(r'JobError\(\s*"([A-Z_]+)"', code))
    ended = set(re.findall(r'"((?:SUCCESS|PRIVACY|RETRIES|RESULT)[A-Z_]*)"', code))
    assert raised | ended == named


def test_the_service_accepts_the_job_of_the_guide() -> None:
    bodies = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)]
    (job,) = (body for body in bodies if "job_request_id" in body)
    request = read_request(job, DELTA_CAP, frozenset({"REPORTS", "SUMMARIES"}), Fraction(64))
    assert (request.mode, request.parameters.epsilon) == ("declared", 4)


def test_the_limits_of_the_guide_equal_those_of_the_code() -> None:
    assert f"{MOST_ROWS:,} rows of budget" in GUIDE


def test_the_first_deployment_of_the_guide_allows_named_origins_alone() -> None:
    guide = (ROOT / "docs" / "guides" / "deploy.md").read_text().partition("\n## Reports\n")[2]
    (step,) = (line for line in guide.splitlines() if '"Reports=ON",' in line)
    (origins,) = re.findall(r'"AllowedOrigins=([^"]*)",', step)
    assert all(map(host_of, origins.split(",")))
    assert f"{MOST_INFO:,}" in API
    assert f"192 KiB; {MOST_PAYLOAD:,} " in API
    assert f"{MOST_SLOTS:,}; {MOST_UNUSUAL}" in API
