"""Writes the descriptions of the interface: ``python -m infra.openapi``.

The OpenAPI description in docs covers the gate, lists and reports. Beside the code that serves them are two without
lists, because every function has them: for a stack, whether it has reports or not, and for the service on one machine.
The JSON Schemas of all bodies are those of the description in docs.
"""

import json
import os
import re
import runpy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
SERVED = ROOT / "shared" / "kanon" / "gate"
VERSION = "1"  # of the API, as in its paths


@dataclass(frozen=True)
class Document:
    """A description: its functions with their tags, and its files."""

    about: str
    functions: dict[str, str]
    files: tuple[Path, ...]


GATE = Document(
    "Is this value shared by at least about k different clients in the past window?",
    {"join": "gate", "query": "gate"},
    (SERVED / "openapi.json",),
)
WITH_REPORTS = Document(
    f"{GATE.about} And noisy histograms of encrypted contributions, in the formats of the aggregation service.",
    {**GATE.functions, "reports/collect": "reports", "reports/jobs": "reports"},
    (SERVED / "openapi-with-reports.json",),
)
WHOLE = Document(WITH_REPORTS.about, {**WITH_REPORTS.functions, "released": "lists"}, (ROOT / "docs" / "openapi.json",))
TAGS = {
    "gate": "Joins and queries of sets",
    "lists": "Values that the crowd shares: only of listed types, elsewhere these calls are 404",
    "reports": "Encrypted reports and jobs: only in a stack with Reports=ON, elsewhere these calls are 404",
}
SCHEMAS = ROOT / "docs" / "reference" / "schemas.json"
SCHEMES: dict[str, Any] = {
    "signature": {"type": "apiKey", "in": "header", "name": "Authorization", "description": "AWS Signature Version 4"},
    "token": {"type": "http", "scheme": "bearer", "description": "A token of the issuer, or a key of one machine"},
}
"""How callers prove who they are. `JoinAuth` and `BatchAuth` choose among them."""
IN_WORDS = "x-refused-if"
"""By the field that the error names, or by one around it: rules that no schema can express, because they count bytes or
entries in all, read a text, or depend on another field or on the deployment. Any other request that fits its schema is
accepted."""
ONE_BY_ONE = "x-refused-one-by-one"
"""The list of a request whose invalid entries are refused alone: each gets its own error in a 200."""
_BATCHED = {
    "client": "it has more than 256 bytes of UTF-8",
    "value": "the type is not listed, it is not the value of the set, or it has more than 512 bytes of UTF-8",
}
_JOIN = {**_BATCHED, "presentation": "the type needs no credential, or one that this presentation does not show"}
_BUCKET = "it is neither a bucket of the stack nor one of ReportBuckets"
_PREFIX = "it has more than 900 bytes of UTF-8, or a control character"
_PUBLICATION = {
    "output_data_bucket_name": _BUCKET,
    "output_data_blob_prefix": _PREFIX,
}
_JOB = {
    **_PUBLICATION,
    "input_data_bucket_name": _BUCKET,
    "input_data_blob_prefix": _PREFIX,
    "input_data_blob_prefixes": f"input_data_blob_prefix is there, too, or of one: {_PREFIX}",
    "job_parameters": "a text is not what its description says, or it does not fit the others or the caps of the stack",
    "output_domain": "its type does not fit its mode",
    "privacy_params": "a text is not what its description says, or it does not fit the others or the caps of the stack",
}
_REPORT = {"shared_info": "its JSON is not what docs/reference/wire.md says"}
REFUSED_IF: dict[str, dict[str, str]] = {
    "join": _JOIN,
    "batchJoin": _BATCHED,
    "query": {"setsForType": "it has more hashes in all than AnonymousHashes allows"},
    "validateHashes": {"sets": "it has more hashes in all than AnonymousHashes allows"},
    "batchQuery": {"setsForType": "it has more than 1,000 hashes in all"},
    "createJob": _JOB,
    "preflight": _JOB,
    "publish": _PUBLICATION,
    "getBudget": dict.fromkeys(
        ("api", "version", "reporting_origin", "attribution_destination", "source_registration_time", "filtering_id"),
        "no report has such a field",
    )
    | {"day": "it is no day"},
}
OF_POWERTOOLS = {"HTTPValidationError", "ResponseValidationError", "ValidationError"}
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
    "KANON_LIST_AUTH": "IAM",
    "KANON_LISTER_KEY": "",
    "KANON_LISTED_TYPES": "",
    "KANON_ISSUER_KEY_SECRET": "",
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
            "STATES_BUCKET",
            "LIST_BUCKET",
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


def description(document: Document = WHOLE) -> dict[str, Any]:
    """A description: OpenAPI 3.1, as plain values."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for function, tag in document.functions.items():
        part = _of(function)
        for path, operations in part["paths"].items():
            for operation in operations.values():
                _complete(operation, tag)
            paths.setdefault(path, {}).update(_named(operations, schemas))
        for name in part["components"]["schemas"].keys() - OF_POWERTOOLS:
            _put(schemas, name, part["components"]["schemas"][name])
    return {
        "openapi": "3.1.0",
        "info": {"title": "kanon", "version": VERSION, "description": document.about},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag, "description": TAGS[tag]} for tag in dict.fromkeys(document.functions.values())],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": SCHEMES},
    }


def _complete(operation: dict[str, Any], tag: str) -> None:
    """Say what Powertools cannot: the part of the service, and which parameters may not be left out."""
    operation["tags"] = [tag]
    name = operation["operationId"]
    if words := _REPORT if name.startswith(("report-", "debug-report-")) else REFUSED_IF.get(name):
        operation[IN_WORDS] = words
    if name == "batchJoin":
        operation[ONE_BY_ONE] = "joins"
    operation["responses"].pop("422", None)  # Powertools' own answer; here invalid requests get 400
    for parameter in operation.get("parameters", []):
        if parameter["schema"].get("minLength"):  # an empty text counts as left out, and gets an answer of its own
            parameter["required"] = True


def _named(value: Any, schemas: dict[str, Any]) -> Any:
    """Describe every object under its name, and refer to it where it is described in place.

    Generated clients name their types so. Other titles are removed: pydantic derives them from the names of fields.
    Defaults are removed too: generators take a field that has one for required. No field is called title or default.
    """
    if isinstance(value, list):
        return [_named(entry, schemas) for entry in value]
    if not isinstance(value, dict):
        return value
    name = value.get("title", "")
    if re.fullmatch("([A-Z][a-z]+){2,}", name) and {"properties", "oneOf"} & value.keys():
        _put(schemas, name, value)
        return {"$ref": f"#/components/schemas/{name}"}
    return {key: _named(entry, schemas) for key, entry in value.items() if key not in ("title", "default")}


def _put(schemas: dict[str, Any], name: str, schema: dict[str, Any]) -> None:
    found = _named({**schema, "title": ""}, schemas)
    if schemas.setdefault(name, found) != found:
        raise ValueError(f"two objects are called {name}: rename one of the models")


@cache
def _read(function: str) -> str:
    with mock.patch.dict(os.environ, ENVIRONMENT):
        module = runpy.run_path(str(ROOT / "functions" / function / "app.py"))
    return str(module["app"].get_openapi_json_schema(security_schemes=SCHEMES))


def _of(function: str) -> dict[str, Any]:
    part: dict[str, Any] = json.loads(_read(function))
    return part


def schemas() -> dict[str, Any]:
    """The JSON Schemas (2020-12) of all bodies, by name."""
    text = json.dumps(description()["components"]["schemas"]).replace("#/components/schemas/", "#/$defs/")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": json.loads(text)}


def text(described: dict[str, Any], *, served: bool = False) -> str:
    """The content of a file; of one that is served, without spaces: every function has it."""
    indent, separators = (None, (",", ":")) if served else (2, (",", ": "))
    return json.dumps(described, indent=indent, separators=separators, sort_keys=True) + "\n"


def main() -> None:
    """Write the files."""
    for document in (GATE, WITH_REPORTS, WHOLE):
        for file in document.files:
            file.write_text(text(description(document), served=file.parent == SERVED))
    SCHEMAS.write_text(text(schemas()))


if __name__ == "__main__":
    main()
