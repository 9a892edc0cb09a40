"""Writes the OpenAPI descriptions of the interface: ``python -m infra.openapi``.

One covers the routes of join and query, the other those of reports, which only a stack with Reports=ON has. Each is
stored beside the code that serves it, and in docs.
"""

import json
import os
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
VERSION = "1"  # of the API, as in its paths


@dataclass(frozen=True)
class Document:
    """A description: its functions, and its files."""

    title: str
    about: str
    functions: tuple[str, ...]
    files: tuple[Path, ...]


GATE = Document(
    "kanon",
    "Is this value shared by at least about k different clients in the past window?",
    ("join", "query"),
    (ROOT / "shared" / "kanon" / "gate" / "openapi.json", ROOT / "docs" / "openapi.json"),
)
REPORTS = Document(
    "kanon reports",
    "Noisy histograms of encrypted contributions, in the formats of the aggregation service.",
    ("reports/collect", "reports/jobs"),
    (ROOT / "functions" / "reports" / "collect" / "openapi.json", ROOT / "docs" / "openapi-reports.json"),
)
# A handler's module reads its environment when it is imported. The description contains no value of it.
ENVIRONMENT = {
    "KANON_TYPES": '{"fledge":{"k":50,"window":720,"profile":"published"}}',
    "KANON_PERIOD": "3600",
    "KANON_SLOTS": "1",
    "KANON_OUTAGE_ALLOWANCE": "604800",
    "KANON_PUBLISH_DELAY": "1800",
    "KANON_MAX_STALE": "24",
    "KANON_ANONYMOUS_HASHES": "100",
    "KANON_EDGE_SECRET": "",
    "KANON_ALLOWED_ORIGINS": "*",
    "KANON_REPORT_BUCKETS": "",
    "KANON_EPSILON_CAP": "64",
    "KANON_DELTA_CAP": "1e-7",
    "POWERTOOLS_SERVICE_NAME": "kanon",
    "POWERTOOLS_METRICS_NAMESPACE": "kanon",
    **{
        f"KANON_{name}": "none"
        for name in (
            "DEPLOYMENT",
            "CONTROL_TABLE",
            "STEP_LOG_TABLE",
            "STATUSES_TABLE",
            "SET_PEPPER_SECRET",
            "CLIENT_KEY_SECRET",
            "ARRIVALS_URL",
            "STAGES_URL",
            "REPORTS_BUCKET",
            "SUMMARIES_BUCKET",
            "REPORT_JOBS_TABLE",
            "BUDGETS_TABLE",
        )
    },
}


def description(document: Document = GATE) -> dict[str, Any]:
    """A description: OpenAPI 3.1, as plain values."""
    merged: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": document.title, "version": VERSION, "description": document.about},
        "servers": [{"url": "/"}],
        "paths": {},
        "components": {"schemas": {}},
    }
    for function in document.functions:
        part = _of(function)
        for path, operations in part["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)  # Powertools' own answer; here invalid requests get 400
            merged["paths"].setdefault(path, {}).update(operations)
        for name, schema in part["components"]["schemas"].items():
            if merged["components"]["schemas"].setdefault(name, schema) != schema:
                raise ValueError(f"{' and '.join(document.functions)} describe {name} differently")
    for name in ("HTTPValidationError", "ResponseValidationError", "ValidationError"):
        merged["components"]["schemas"].pop(name, None)
    return {**merged, "paths": _untitled(merged["paths"]), "components": _untitled(merged["components"])}


def _untitled(value: Any) -> Any:
    """Remove the titles that pydantic derives from names. No field is called title."""
    if isinstance(value, dict):
        return {name: _untitled(entry) for name, entry in value.items() if name != "title"}
    return [_untitled(entry) for entry in value] if isinstance(value, list) else value


def _of(function: str) -> dict[str, Any]:
    with mock.patch.dict(os.environ, ENVIRONMENT):
        module = runpy.run_path(str(ROOT / "functions" / function / "app.py"))
    part: dict[str, Any] = json.loads(module["app"].get_openapi_json_schema())
    return part


def text(document: Document = GATE) -> str:
    """The content of the files."""
    return json.dumps(description(document), indent=2, sort_keys=True) + "\n"


def main() -> None:
    """Write the files."""
    for document in (GATE, REPORTS):
        for file in document.files:
            file.write_text(text(document))


if __name__ == "__main__":
    main()
