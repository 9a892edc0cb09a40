"""The OpenAPI description of the bodies of jobs. ``requests`` alone validates them."""

from typing import Annotated, Any

from aws_lambda_powertools.event_handler.openapi.params import Body

from kanon.reports.parameters import DEFAULT_DELTA, DEFAULT_EPSILON
from kanon.reports.service.requests import DEFAULT_ERROR_THRESHOLD, MOST_DESTINATIONS, MOST_FILTERING_IDS, MOST_PREFIXES


def _text(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


ID = _text("1 to 128 printable ASCII characters, no bar")
OUTPUT_BUCKET = _text("Where the summary goes")
OUTPUT_PREFIX = _text("The name of the summary; -1-of-1 is put behind it, before .avro")
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "description": "Texts. Exactly one of attribution_report_to and reporting_site",
    "properties": {
        "attribution_report_to": _text("The only reporting origin"),
        "reporting_site": _text("The only site of reporting origins, such as https://example.com"),
        "output_domain_bucket_name": _text("Where the declared keys are; not for discovery"),
        "output_domain_blob_prefix": _text("Their name, or what the names begin with; not for discovery"),
        "debug_privacy_epsilon": _text(
            f"Above 0, at most EpsilonCap, at most 3 decimals; {DEFAULT_EPSILON} if left out"
        ),
        "report_error_threshold_percentage": _text(f"0 to 100; {DEFAULT_ERROR_THRESHOLD} if left out"),
        "input_report_count": _text("A whole number"),
        "filtering_ids": _text(f"At most {MOST_FILTERING_IDS} numbers below 2^64, with commas; 0 if left out"),
        "attribution_destinations": _text(f"The only destinations, at most {MOST_DESTINATIONS}, with commas"),
        "debug_run": _text("Only false"),
    },
}
JOB: dict[str, Any] = {
    "required": [
        "job_request_id",
        "input_data_bucket_name",
        "output_data_bucket_name",
        "output_data_blob_prefix",
        "job_parameters",
    ],
    "properties": {
        "job_request_id": ID,
        "input_data_bucket_name": _text("Where the reports are"),
        "input_data_blob_prefix": _text("What the names of their objects begin with"),
        "input_data_blob_prefixes": {
            "type": "array",
            "items": {"type": "string"},
            "maxItems": MOST_PREFIXES,
            "description": "In place of input_data_blob_prefix",
        },
        "output_data_bucket_name": OUTPUT_BUCKET,
        "output_data_blob_prefix": OUTPUT_PREFIX,
        "job_parameters": PARAMETERS,
        "output_domain": {
            "type": "object",
            "properties": {"mode": {"type": "string", "enum": ["declared", "discover"], "default": "declared"}},
        },
        "privacy_params": {
            "type": "object",
            "properties": {
                "laplace_dp_params": {
                    "type": "object",
                    "properties": {
                        "job_epsilon": _text("In place of debug_privacy_epsilon"),
                        "job_delta": _text(f"For discovery, 1e-12 up to DeltaCap; {DEFAULT_DELTA} if left out"),
                    },
                }
            },
        },
        "skip_exhausted": {
            "type": "boolean",
            "default": False,
            "description": "Leave out the reports of units that are short of budget, rather than refuse the job",
        },
    },
}
PUBLICATION: dict[str, Any] = {
    "required": ["job_request_id"],
    "properties": {
        "job_request_id": ID,
        "output_data_bucket_name": OUTPUT_BUCKET,
        "output_data_blob_prefix": OUTPUT_PREFIX,
    },
}

JobBody = Annotated[dict[str, Any], Body(description="A job", json_schema_extra=JOB)]
PublicationBody = Annotated[dict[str, Any], Body(description="What to publish", json_schema_extra=PUBLICATION)]
