"""The bodies that ``collect`` accepts and the messages that it queues.

Only the fields named here are kept. ``debug_cleartext_payload``, debug keys and unknown fields are dropped before a
report is queued. No error message repeats a part of the request.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, StrictStr
from pydantic.config import JsonDict

from kanon.http.answers import wrong_field
from kanon.http.bodies import ANY_JSON, Bodies, RequestError
from kanon.reports.errors import Counter, JobError, ReportRefusedError
from kanon.reports.shared_info import DAY, END_OF_TIME, MAX_AGE, MAX_AHEAD, SharedInfo, host_of, parse

PUBLIC_KEYS = "/.well-known/aggregation-service/v1/public-keys"
REPORTS = {
    "/.well-known/attribution-reporting/report-aggregate-attribution": "attribution-reporting",
    "/.well-known/private-aggregation/report-shared-storage": "shared-storage",
    "/.well-known/private-aggregation/report-protected-audience": "protected-audience",
    "/v1/reports": "kanon",
}
"""The paths for reports, and the only ``api`` that each accepts."""

JOB_PATHS = ("/v1alpha/", "/stage/", "/v1/jobs", "/v1/budget")
"""How the paths about jobs begin, and of no others."""

REPORT_BODIES = Bodies(192 << 10, ANY_JSON, "send each report by itself")
MOST_INFO = 2048
"""Characters of ``shared_info``. Clients write about 400; a job reads the text before it decrypts the report."""
LEAST_PAYLOAD, MOST_PAYLOAD = 49, 48_077
"""Bytes: an encapsulated key of 32, a tag of 16, and 1 of ciphertext up to those of 1,000 pairs."""

VERSIONS = re.compile("[01][.][0-9]")
"""Few, as days of registration: each has rows of budget of its own, and a job takes from a limited number of rows."""
VERSION = "has a version that this stack does not support: send 0.1 or 1.0"
REFUSED = {
    Counter.REQUIRED_SHAREDINFO_FIELD_INVALID: (
        "is not a JSON object with api, version, report_id, reporting_origin and scheduled_report_time (attribution:"
        " also attribution_destination), each once and valid"
    ),
    Counter.UNSUPPORTED_SHAREDINFO_VERSION: VERSION,
    Counter.UNSUPPORTED_REPORT_API_TYPE: "has an api that this stack does not support",
    Counter.INVALID_REPORT_ID: "has a report_id that is not a UUID",
}


def debug_path(path: str) -> str:
    """The path of debug reports beside a path of reports."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/debug/{name}"


class Sent(BaseModel):
    """A request body in the browsers' field names. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    def __repr_args__(self) -> list[Any]:
        return []  # Powertools formats every body for its debug log


def _encrypted(text: str) -> str:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be base64") from None
    if len(data) < LEAST_PAYLOAD:
        raise ValueError(f"must be at least {LEAST_PAYLOAD} bytes in base64, as encryption gives them")
    return text


def _short(text: str) -> str:
    if len(base64.b64decode(text)) > MOST_PAYLOAD:
        raise ValueError(f"must be at most {MOST_PAYLOAD} bytes in base64: send fewer pairs")
    return text


ENCRYPTED: JsonDict = {
    "minLength": (LEAST_PAYLOAD + 2) // 3 * 4,
    "maxLength": (MOST_PAYLOAD + 2) // 3 * 4,
    "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
"""The JSON Schema of a payload."""


class Payload(Sent):
    """An encrypted payload."""

    payload: Annotated[
        StrictStr,
        AfterValidator(_encrypted),
        AfterValidator(_short),
        Field(description="Encrypted, base64", json_schema_extra=ENCRYPTED),
    ]
    key_id: Annotated[StrictStr, Field(pattern="^[!-~]{1,128}$", description="The public key it is encrypted to")]


class ReportBody(Sent):
    """One aggregatable report. Other fields are discarded, above all clear text for debugging."""

    shared_info: Annotated[StrictStr, Field(max_length=MOST_INFO, description="JSON text, kept as received")]
    aggregation_service_payloads: Annotated[list[Payload], Field(min_length=1, max_length=1)]


Time = Annotated[StrictInt, Field(ge=0, lt=END_OF_TIME)]


class TakenAnswer(BaseModel):
    """An empty object: the report was taken."""


class PublicKeyAnswer(BaseModel):
    """A key that reports may be encrypted to."""

    id: str
    key: Annotated[str, Field(description="32 bytes, base64")]


class PublicKeysAnswer(BaseModel):
    """The keys of the deployment."""

    keys: list[PublicKeyAnswer]


class ReportMessage(BaseModel):
    """A report on its way from ``collect`` to ``store``: the encrypted payload, and shared_info as received.

    An earlier version may have queued it, so the limits of today do not apply.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["report"] = "report"
    api: Literal["attribution-reporting", "shared-storage", "protected-audience", "kanon"]
    scheduled_report_time: Time
    shared_info: StrictStr
    payload: Annotated[StrictStr, AfterValidator(_encrypted)]
    key_id: StrictStr

    def text(self) -> str:
        """JSON in ASCII, because a queue refuses other characters."""
        return json.dumps(self.model_dump(), separators=(",", ":"))


def report_message(
    body: ReportBody, api: str, allows: Callable[[str], bool], is_key: Callable[[str], bool], now: float
) -> ReportMessage:
    """Check the clear fields of a report at ``now`` (Unix s), and make its message.

    The path takes one ``api``. ``allows`` decides on origins, ``is_key`` on the ids of keys that were ever published.

    Raises:
        RequestError: 400; the message says what to change.
    """
    info = _info(body.shared_info)
    if not VERSIONS.fullmatch(info.version):
        raise refused(VERSION)
    if info.api != api:
        raise refused("has an api of another path: send it to that path")
    if host_of(info.reporting_origin) is None:
        raise refused("has a reporting_origin that is not an https origin")
    if not allows(info.reporting_origin):
        raise refused("has a reporting_origin that is not in the stack's parameter AllowedOrigins")
    if not -MAX_AHEAD <= now - info.scheduled_report_time <= MAX_AGE:
        raise refused("has a scheduled_report_time over 90 days ago or over a day ahead: no job would accept it")
    registered = info.source_registration_time
    if registered and (registered % DAY or not 0 <= info.scheduled_report_time - registered <= MAX_AGE):
        raise refused("has a source_registration_time that is no whole day of the 90 days before the report's")
    (sealed,) = body.aggregation_service_payloads
    if not is_key(sealed.key_id):
        reason = "names no public key of this stack: fetch the public keys, and encrypt to one of them"
        field = "aggregation_service_payloads.0.key_id"
        raise RequestError(wrong_field(field, reason))
    return ReportMessage(
        api=info.api,
        scheduled_report_time=info.scheduled_report_time,
        shared_info=body.shared_info,
        payload=sealed.payload,
        key_id=sealed.key_id,
    )


def _info(text: str) -> SharedInfo:
    try:
        return parse(text)
    except ReportRefusedError as error:
        raise refused(REFUSED[error.counter]) from None
    except JobError:
        raise refused(VERSION) from None


def refused(reason: str) -> RequestError:
    """The error for a report with invalid clear fields."""
    return RequestError(wrong_field("shared_info", reason))
