"""The imports of the functions of reports at their start, each in its own process."""

import os
import subprocess
import sys
from functools import cache

import pytest

from tests.paths import ROOT
from tests.unit.reports import test_settings as environments

ENVIRONMENTS = {"collect": environments.COLLECT, "store": environments.STORE, "jobs": environments.JOBS}
LARGE = {"numpy", "fastavro", "cbor2", "cryptography", "publicsuffixlist"}
OTHERS = {"gate", "local", "cli", "release", "risk", "client", "plan", "simulate", "operate", "audit", "cost"}


@cache
def modules(function: str, then: str = "") -> frozenset[str]:
    """Everything that is imported when a function starts, and after one more statement."""
    text = f"import app, sys; {then or 'pass'}; print('\\n'.join(sys.modules))"
    paths = [ROOT / "shared", ROOT / "functions" / "reports" / function]
    path = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [sys.executable, "-c", text],
        env={**ENVIRONMENTS[function], **path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return frozenset(ran.stdout.split())


@pytest.mark.parametrize("function", ["collect", "jobs"])
def test_functions_that_answer_requests_start_without_large_libraries(function: str) -> None:
    assert "kanon.http.edge" in modules(function)
    assert not LARGE & modules(function)


def test_a_preflight_imports_only_readers_of_files_and_of_suffixes() -> None:
    loaded = modules(
        "jobs", "import kanon.reports.avro; from kanon.reports import shared_info as s; s.site_of('https://a.test')"
    )
    assert LARGE & loaded == {"fastavro", "publicsuffixlist"}


def test_the_store_needs_avro_alone() -> None:
    assert LARGE & modules("store") == {"fastavro"}


@pytest.mark.parametrize("function", ENVIRONMENTS)
def test_a_function_of_reports_imports_no_other_room(function: str) -> None:
    rooms = {name.split(".")[1] for name in modules(function) if name.startswith("kanon.")}
    assert "reports" in rooms
    assert {path.name for path in (ROOT / "shared" / "kanon").iterdir()} >= OTHERS
    assert not rooms & OTHERS
    assert not {name.split(".")[0] for name in modules(function)} & {"boto3", "s3transfer", "typer", "yaml", "moto"}


def test_collect_knows_no_jobs_no_budgets_and_no_objects() -> None:
    storage = {name for name in modules("collect") if name.startswith("kanon.reports.storage.")}
    assert storage == {"kanon.reports.storage.key_ring"}
    assert not any(name.startswith("kanon.reports.service") for name in modules("collect"))
