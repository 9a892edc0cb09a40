"""The allowed answers of the functions of reports: each answer has its own fields, and no others."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.monitor.allowed_output import Problems, matches, wrong_error, wrong_text

_OPTIONAL = "?"
_MOMENT = matches(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_DECIMAL = matches(r"\d+(\.\d+)?(e-?\d+)?")
_CODE = matches(r"[A-Z_]+")

Form = Mapping[str, Any]
"""Fields and what each may hold: a check, a form, or a list of one form. ``?`` ends the name of one that may lack."""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


JOB: Form = {
    "job_status": matches("RECEIVED|IN_PROGRESS|FINISHED"),
    "request_received_at": _MOMENT,
    "request_processing_started_at?": _MOMENT,
    "request_updated_at": _MOMENT,
    "job_request_id": _text,
    "input_data_bucket_name": _text,
    "input_data_blob_prefix?": _text,
    "input_data_blob_prefixes?": _texts,
    "output_data_bucket_name": _text,
    "output_data_blob_prefix": _text,
    "job_parameters": lambda value: isinstance(value, dict) and all(map(_text, value.values())),
    "result_info?": {
        "return_code": _CODE,
        "return_message": _text,
        "error_summary": {"error_counts": [{"category": _CODE, "count": _count}], "error_messages": _texts},
        "finished_at": _MOMENT,
    },
    "privacy": {
        "unit": _text,
        "epsilon": _DECIMAL,
        "delta": _DECIMAL,
        "contribution_bound": lambda value: value == 65_536,
        "mode": matches("declared|discover|kanon"),
        "threshold?": _count,
        "standard_deviation": lambda value: isinstance(value, float),
        "rows_charged": _count,
        "epsilon_cap": _DECIMAL,
        "delta_cap": _DECIMAL,
        "e_epsilon_cap": _text,
        "this_summary": _texts,
        "all_summaries": _texts,
        "released_keys?": {
            "type": _text,
            "step": _count,
            "keys": _count,
            **{f"{of}_{what}": _DECIMAL for of in ("join", "sum") for what in ("epsilon", "delta")},
        },
    },
}
BUDGET: Form = {
    "day": matches(r"\d{4}-\d\d-\d\d"),
    "epsilon_cap": _DECIMAL,
    "delta_cap": _DECIMAL,
    "charged": lambda value: isinstance(value, bool),
    "hours": [{"hour": _count, "epsilon_left": _DECIMAL, "delta_left": _DECIMAL}],
    "jobs": [{"job_request_id": _text, "hours": lambda value: True, "epsilon": _DECIMAL, "delta": _DECIMAL}],
}
KEYS: Form = {"keys": [{"id": _text, "key": matches("[A-Za-z0-9+/]{43}=")}]}
NOTHING: Form = {}

COLLECT = re.compile(r"/\.well-known/.*|/v1/(debug/)?reports")
JOBS: dict[str, Form | None] = {
    "/v1alpha/createJob": NOTHING,
    "/stage/v1alpha/createJob": NOTHING,
    "/v1alpha/getJob": JOB,
    "/stage/v1alpha/getJob": JOB,
    "/v1/jobs:preflight": None,  # numbers of reports by their clear fields, which their role may read anyway
    "/v1/jobs:publish": NOTHING,
    "/v1/budget": BUDGET,
}
_FIELD = re.compile(r"body|shared_info|payload|key_id|[a-z_]+(\[\d+\]|\.\d+)?([.][a-z_]+)*")


def is_reports(path: str) -> bool:
    """Whether a path is one of reports."""
    return path in JOBS or COLLECT.fullmatch(path) is not None


def wrong_reports_answer(path: str, status: int, body: str) -> Problems:
    """The answer of collect or jobs."""
    answer = json.loads(body)
    if status >= 400:
        error = answer.get("error", {})
        yield from _wrong_job_error(error) if path in JOBS else wrong_error(error, status, _FIELD)
    elif path in JOBS:
        form = JOBS[path]
        yield from [] if form is None else wrong_form(answer, form, path)
    else:
        yield from wrong_form(answer, KEYS if path.endswith("/public-keys") else NOTHING, path)


def wrong_form(value: Any, form: Form | list[Form] | Callable[[Any], bool], name: str) -> Problems:
    """A value with other fields than its form has, or other contents."""
    if callable(form):
        if not form(value):
            yield f"an answer says {value!r} as its {name}"
    elif isinstance(form, list):
        for each in value:
            yield from wrong_form(each, form[0], name)
    else:
        wanted = {field.removesuffix(_OPTIONAL): check for field, check in form.items()}
        if unknown := set(value) - set(wanted):
            yield f"{name} has the fields {sorted(unknown)}"
        for field, check in form.items():
            if field.removesuffix(_OPTIONAL) in value:
                yield from wrong_form(value[field.removesuffix(_OPTIONAL)], check, field)
            elif not field.endswith(_OPTIONAL):
                yield f"{name} has no field {field!r}"


def _wrong_job_error(error: Any) -> Problems:
    """An error in the form of the aggregation service."""
    if set(error) != {"code", "message", "status", "details"}:
        yield f"an error has the form {error}"
        return
    yield from (f"an error has the detail {detail}" for detail in error["details"] if not _right_detail(detail))
    yield from wrong_text(error["message"])


def _right_detail(detail: Any) -> bool:
    fields = detail.get("metadata", {"": ""})
    return (
        set(detail) == {"reason", "domain", "metadata"}
        and _CODE(detail["reason"])
        and set(fields) <= {"field"}
        and all(map(_FIELD.fullmatch, fields.values()))
    )
