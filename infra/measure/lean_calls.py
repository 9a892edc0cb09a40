"""The cost of the SDK: one call of the service's client relative to a minimal signed call.

The service does not use the minimal call: it would need its own code for retries, errors, endpoints and credentials.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from typing import Any

import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from infra.measure.measure import Ratio, Turn, compare
from infra.measure.rows import Form, row
from infra.measure.service import Service, service

KEY = bytes(32)


@row("lean call")
def lean_call(form: Form) -> Iterator[Ratio]:
    """Reading one item of the size of a status."""
    calls = form.size(100, 5)
    with service() as running:
        table = running.new_table("lean", "set_key")
        item: dict[str, Any] = {"set_key": {"B": KEY}, "newest": {"N": "472222"}}
        running.dynamodb.put_item(TableName=table, Item=item)
        lean = LeanCalls(running, table)
        if lean.get() != running.dynamodb.get_item(TableName=table, Key={"set_key": {"B": KEY}})["Item"]["newest"]:
            raise RuntimeError("the lean call reads something else")

        def ours() -> None:
            for _ in range(calls):
                running.dynamodb.get_item(TableName=table, Key={"set_key": {"B": KEY}})

        def bare() -> None:
            for _ in range(calls):
                lean.get()

        yield compare(
            "one call, get_item of one small item",
            "JSON, botocore's signature and one request of urllib3, without retries and errors",
            "call",
            partial(Turn, calls, ours),
            partial(Turn, calls, bare),
            inside="the service's client: parameters, endpoint, signature, retries, HTTP, parsing",
            turns=form.size(15, 1),
            target=None,
        )


class LeanCalls:
    """GetItem with as little code as possible."""

    def __init__(self, running: Service, table: str) -> None:
        self._url = running.dynamodb.meta.endpoint_url + "/"
        self._http = urllib3.PoolManager()
        self._body = json.dumps({"TableName": table, "Key": {"set_key": {"B": b64encode(KEY).decode()}}}).encode()
        environment = running.environments["query"]
        credentials = Credentials(environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"])
        self._signer = SigV4Auth(credentials, "dynamodb", "us-east-1")

    def get(self) -> Any:
        """The attribute ``newest`` of the item."""
        headers = {"X-Amz-Target": "DynamoDB_20120810.GetItem", "Content-Type": "application/x-amz-json-1.0"}
        request = AWSRequest("POST", self._url, headers, self._body)
        self._signer.add_auth(request)
        answer = self._http.request("POST", self._url, body=self._body, headers=dict(request.headers.items()))
        return json.loads(answer.data)["Item"]["newest"]
