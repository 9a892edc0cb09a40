"""A service for tests in other languages: it prints its address, obeys lines on its input, and ends with it.

``python -m tests.web.service gate ORIGIN``: the service of one machine, with a clock that only commands move.
``python -m tests.web.service lists ORIGIN``: the same with the listed type ``searches`` beside the other one.
``python -m tests.web.service relayed ORIGIN``: the same with a gateway for relays, at a time in 2027.
``python -m tests.web.service people ORIGIN``: the same with types that need credentials.
``python -m tests.web.service rehearsal ORIGIN``: the stack, with a clock that only its console moves.
``python -m tests.web.service reports ORIGIN``: the stack with reports. Pages of ORIGIN may call.

Each command is answered by one line of JSON. Of the gate: ``step`` evaluates a step and makes it visible, ``stale``
lets too many steps pass without an evaluation, ``key`` answers an API key, ``console`` the address of the console,
``now`` the time, ``logs`` what was logged. Of people: ``account NAME`` answers an API key, ``enrol KEY CODE`` lets a
device in Python enrol and join ``shared`` for it, ``week`` lets a week pass, ``monday`` the days to the next, ``seen``
answers the requests that the service read, those of relays opened, and ``joins`` how many clients joined a set in this
step. Of reports: ``count ORIGIN KEY...`` runs a job over the reports of an origin and answers its result and the noisy
sums of these keys, in hexadecimal.
"""

import base64
import io
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

from kanon.cli.serve import _evaluated, _timing
from kanon.cli.serve_data import Credentials
from kanon.client import Bearer
from kanon.clock import DAY, WEEK, end_of_week, week_of
from kanon.cors import Cors
from kanon.local import Stack
from kanon.local.clock import Every
from kanon.reports.avro import read_summary, write_domain
from kanon.serving.access import AuthMode
from tests.integration.credentials.people import account, client_of, count, device
from tests.integration.serving.machine import PERIOD, START, Machine, machine
from tests.moto_engine import Moto
from tests.unit.reports.made import keys16

TYPES = {"terms": {"k": 20, "window": 24, "profile": "crossing"}}
LISTED = {"searches": {**TYPES["terms"], "listed": True}}
OPEN = Credentials(AuthMode.OPEN, AuthMode.KEY, None, None, None)
STALE_STEPS = 30
FIRST_KEY = 900
"""Seconds in which the stack issues its first public key."""


class Gate:
    """The service of one machine."""

    types: ClassVar[dict[str, Any]] = TYPES
    gateway = False

    def __init__(self, running: ExitStack, origin: str) -> None:
        path = Path(running.enter_context(tempfile.TemporaryDirectory())) / "data"
        made = machine(path, OPEN, Cors.of([origin]), self.types, gateway=self.gateway)
        self.served: Machine = running.enter_context(made)
        self.url = f"http://127.0.0.1:{self.served.server.port}"
        self.served.evaluate()

    def step(self) -> Any:
        """Evaluate a step."""
        self.served.evaluate()
        return {}

    def stale(self) -> Any:
        """Let steps pass."""
        self.served.now += STALE_STEPS * PERIOD
        return {}

    def console(self) -> Any:
        """The address of the console, with its token."""
        return {"address": self.served.service.console.address(self.url)}

    def key(self) -> Any:
        """An API key."""
        return {"key": self.served.key}

    def now(self) -> Any:
        """The time in milliseconds since 1970."""
        return {"now": int(self.served.now * 1000)}

    def logs(self) -> Any:
        """What was logged so far."""
        return {"logs": self.served.logs.getvalue()}


class Lists(Gate):
    """The same with a listed type."""

    types = TYPES | LISTED


class Relayed(Gate):
    """The same with a gateway for relays."""

    gateway = True


class People(Relayed):
    """The same with types that need credentials."""

    types: ClassVar[dict[str, Any]] = {name: {**TYPES["terms"], "credential": True} for name in ("people", "others")}

    def __init__(self, running: ExitStack, origin: str) -> None:
        super().__init__(running, origin)
        self._read: list[dict[str, Any]] = []
        self._answered = self.served.service._answer
        self.served.service._answer = self._recorded  # type: ignore[method-assign]

    def _recorded(self, event: dict[str, Any]) -> dict[str, Any]:
        body = event.get("body") or ""
        body = base64.b64decode(body).decode() if event.get("isBase64Encoded") else body
        seen = {"method": event["requestContext"]["http"]["method"], "path": event["rawPath"], "body": body}
        self._read.append({**seen, "headers": dict(event["headers"])})
        return self._answered(event)

    def account(self, name: str) -> Any:
        """The API key of a new account."""
        return {"key": account(self.served, name).token}

    def enrol(self, key: str, code: str) -> Any:
        """Enrol a device in Python, and join."""
        with tempfile.TemporaryDirectory() as folder:
            me = device(self.served, Path(folder) / "credential.json")
            me.enrol(self.url, auth=Bearer(key), recovery=code)
            with client_of(self.served, me) as client:
                client.join("people", "shared")
        return {}

    def week(self) -> Any:
        """Let a week pass."""
        self.served.now += WEEK
        return {}

    def monday(self) -> Any:
        """Let the days to the next Monday pass."""
        self.served.now = end_of_week(week_of(self.served.now)) + self.served.now % DAY
        return {}

    def seen(self) -> Any:
        """The requests that the service read."""
        return {"requests": self._read}

    def joins(self) -> Any:
        """How many clients joined a set in this step."""
        return {"joins": count(self.served)}


class Rehearsal:
    """The stack, as `kanon serve` rehearses it."""

    def __init__(self, running: ExitStack, origin: str) -> None:
        given = {**_timing(PERIOD), "Types": json.dumps(TYPES), "CorsOrigins": origin}
        schedule = Every(PERIOD, _evaluated(PERIOD))
        self.stack = running.enter_context(Stack(given, engine=Moto, start=START, seed=7, schedule=schedule))
        server = self.stack.serve()
        running.callback(server.close)
        self.url = server.url

    def console(self) -> Any:
        """The address of the console, with its token."""
        return {"address": self.stack.console.address(self.url)}


class Reports:
    """The stack with reports."""

    def __init__(self, running: ExitStack, origin: str) -> None:
        given = {"Reports": "ON", "CorsOrigins": origin, "JoinAuth": "OPEN"}
        self.stack = running.enter_context(Stack(given, engine=Moto, start=time.time() - FIRST_KEY, logs=io.StringIO()))
        self.stack.advance(FIRST_KEY)
        server = self.stack.serve()
        running.callback(server.close)
        self.url = server.url

    def count(self, origin: str, *keys: str) -> Any:
        """Run a job over the reports of an origin, with these declared keys."""
        self.stack.advance(120)
        environment = self.stack.functions["jobs"].environment
        summaries = environment["KANON_SUMMARIES_BUCKET"]
        name = f"job-of-{origin.removeprefix('https://')}"
        asked = {
            "job_request_id": name,
            "input_data_bucket_name": environment["KANON_REPORTS_BUCKET"],
            "input_data_blob_prefix": "reports/kanon/",
            "output_data_bucket_name": summaries,
            "output_data_blob_prefix": f"{name}.avro",
            "job_parameters": {
                "attribution_report_to": origin,
                "report_error_threshold_percentage": "0",
                "debug_privacy_epsilon": "64",
                "output_domain_bucket_name": summaries,
                "output_domain_blob_prefix": f"domain-{name}",
            },
        }
        file = BytesIO()
        write_domain(file, keys16(*(int(key, 16) for key in keys)))
        self.stack.session.client("s3").put_object(Bucket=summaries, Key=f"domain-{name}", Body=file.getvalue())
        created = self.stack.request("POST", "/v1alpha/createJob", asked)
        if created.status != 202:
            return created.json()
        path = f"/v1alpha/getJob?job_request_id={name}"
        for _ in range(100):
            job = self.stack.request("GET", path).json()
            if job["job_status"] == "FINISHED":
                break
            self.stack.advance(60)
        return {"result": job["result_info"], "released": self._released(summaries, name)}

    def _released(self, bucket: str, name: str) -> dict[str, int]:
        s3 = self.stack.session.client("s3")
        found = s3.list_objects_v2(Bucket=bucket, Prefix=f"{name}-").get("Contents", [])
        files = [s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read() for item in found]
        return {fact.bucket.hex(): fact.metric for file in files for fact in read_summary(BytesIO(file))}


KINDS = {
    "gate": Gate,
    "lists": Lists,
    "relayed": Relayed,
    "people": People,
    "rehearsal": Rehearsal,
    "reports": Reports,
}


def main(kind: str, origin: str) -> None:
    """Serve until the input ends."""
    with ExitStack() as running:
        service: Any = KINDS[kind](running, origin)
        print(json.dumps({"url": service.url}), flush=True)
        for line in sys.stdin:
            command, *arguments = line.split()
            print(json.dumps(getattr(service, command)(*arguments)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
