"""The functions join and query over moto's tables, called as API Gateway calls them.

No HTTP and no template here: the event goes in, the result comes out. The functions' AWS calls and output are recorded
for the tests.
"""

import base64
import contextlib
import importlib.util
import io
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Self
from unittest import mock
from urllib.parse import unquote

import boto3
import botocore.loaders
import botocore.session
from moto import mock_aws

from kanon import aws, clock
from kanon.gate.names import set_key
from kanon.gate.slots import Layout
from kanon.gate.storage.aws.statuses import Statuses
from kanon.keys import Secret
from kanon.local.functions import HandlerContext
from kanon.local.template import Template
from tests.integration.gate.tables import cross, move_horizon
from tests.monitor.monitor import Log, Monitor
from tests.paths import ROOT

NOW = 1_800_000_123.5
PERIOD = 3600
DELAY = 1800
SLOTS = 4
PEPPER = "pepper-pepper-pepper-pepper-pepper-pepper-pepper-pepper-pepper-ab"
CLIENT_KEY = "client-client-client-client-client-client-client-client-client-ab"
TYPES = {
    "fledge": {"k": 50, "window": 720, "profile": "published"},
    "search-term": {"k": 40, "window": 24, "profile": "balanced"},
}
RESOURCES = {
    "KANON_CONTROL_TABLE": "control",
    "KANON_STEP_LOG_TABLE": "step-log",
    "KANON_STATUSES_TABLE": "statuses",
}
# The template's names of the resources with these names.
ARNS = {
    "control": {"Fn::GetAtt": ["Control", "Arn"]},
    "step-log": {"Fn::GetAtt": ["StepLog", "Arn"]},
    "statuses": {"Fn::GetAtt": ["Statuses", "Arn"]},
    "set-pepper": {"Ref": "SetPepper"},
    "client-key": {"Ref": "ClientKey"},
}
ENVIRONMENT = {
    **RESOURCES,
    "KANON_TYPES": json.dumps(TYPES),
    "KANON_PERIOD": str(PERIOD),
    "KANON_SLOTS": str(SLOTS),
    "KANON_DEPLOYMENT": "stack/edge",
    "KANON_OUTAGE_ALLOWANCE": "604800",
    "KANON_PUBLISH_DELAY": str(DELAY),
    "KANON_STATES_BUCKET": "states",
    "KANON_SET_PEPPER_SECRET": "set-pepper",
    "KANON_CLIENT_KEY_SECRET": "client-key",
    "KANON_ANONYMOUS_HASHES": "100",
    "KANON_MAX_STALE": "24",
    "KANON_EDGE_SECRET": "",
    "KANON_LISTER_KEY": "",
    "KANON_ISSUER_KEY_SECRET": "",
    "POWERTOOLS_METRICS_NAMESPACE": "kanon",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
}
OWN = {
    "join": {"KANON_STEP_LOG_TABLE", "KANON_SET_PEPPER_SECRET", "KANON_CLIENT_KEY_SECRET",
             "KANON_OUTAGE_ALLOWANCE", "KANON_EDGE_SECRET", "KANON_LISTER_KEY", "KANON_ISSUER_KEY_SECRET"},
    "query": {"KANON_STATUSES_TABLE", "KANON_STATES_BUCKET", "KANON_SET_PEPPER_SECRET", "KANON_PUBLISH_DELAY",
              "KANON_ANONYMOUS_HASHES", "KANON_MAX_STALE", "KANON_EDGE_SECRET"},
}  # fmt: skip
_numbers = itertools.count()
_loader = botocore.loaders.create_loader()  # reading the service models takes most of a client's time


@dataclass(frozen=True)
class Result:
    """What a function returned to API Gateway."""

    status: int
    body: str
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        return str(self.json()["error"]["message"])

    @property
    def fields(self) -> list[str]:
        return [problem["field"] for problem in self.json()["error"]["details"]]


@dataclass
class Edge:
    """Both functions, cold, over empty tables. A context manager."""

    environment: dict[str, str] = field(default_factory=dict)
    now: float = NOW
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    output: io.StringIO = field(default_factory=io.StringIO)
    fail: Callable[[str], str | None] = lambda operation: None
    """The error code with which a call of this operation is to fail, or None."""
    leave: Callable[[dict[str, Any]], bool] = lambda item: False
    """Whether a batch leaves this item unprocessed."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            inherited = {k: v for k, v in os.environ.items() if not k.startswith(("KANON_", "POWERTOOLS_", "AWS_"))}
            # Powertools' loggers live as long as the process, by name, and keep the stream they began with.
            service = {"POWERTOOLS_SERVICE_NAME": f"kanon-{next(_numbers)}"}
            everything = {**inherited, **ENVIRONMENT, **service, **self.environment}
            stack.enter_context(mock.patch.dict(os.environ, everything, clear=True))
            stack.enter_context(mock_aws())
            stack.enter_context(mock.patch.object(clock, "now", self._now))
            stack.enter_context(mock.patch.object(clock, "sleep"))
            session = botocore.session.Session()
            session.register_component("data_loader", _loader)
            stack.enter_context(mock.patch.object(boto3, "DEFAULT_SESSION", boto3.Session(botocore_session=session)))
            stack.enter_context(mock.patch.object(aws, "session", return_value=session))
            self.dynamodb = boto3.client("dynamodb")
            self._create()
            session.register("provide-client-params", self._recorded)
            session.register("before-call", self._failing)
            session.register("after-call.dynamodb.BatchWriteItem", self._leaving)
            self._modules: dict[str, ModuleType] = {}
            template = Template.read(ROOT / "template.yaml", {}, "edge")
            self.monitor = Monitor(template, {name: template.resolve(arn) for name, arn in ARNS.items()})
            self.monitor.secret(PEPPER)
            self.monitor.secret(CLIENT_KEY)
            self._function = ""
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.monitor.closed = True
        self._stack.close()

    def _now(self) -> float:
        return self.now

    def _create(self) -> None:
        keys = {
            "control": [("name", "S")],
            "step-log": [("step_slot", "B"), ("set_token", "B")],
            "statuses": [("set_key", "B")],
        }
        for table, attributes in keys.items():
            self.dynamodb.create_table(
                TableName=table,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": n, "AttributeType": t} for n, t in attributes],
                KeySchema=[
                    {"AttributeName": name, "KeyType": kind}
                    for (name, _), kind in zip(attributes, ("HASH", "RANGE"), strict=False)
                ],
            )
        secrets = boto3.client("secretsmanager")
        secrets.create_secret(Name="set-pepper", SecretString=PEPPER)
        secrets.create_secret(Name="client-key", SecretString=CLIENT_KEY)

    def _recorded(self, params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.calls.append((model.name, params))
        self.monitor.called(self._function, model.service_model.endpoint_prefix, model.name, params)
        if model.name != "BatchWriteItem":
            return params
        ((table, requests),) = params["RequestItems"].items()
        left = [each for each in requests if self.leave(each["PutRequest"]["Item"])]
        context["left"] = {table: left} if left else {}
        context["all left"] = len(left) == len(requests)
        kept = requests if context["all left"] else [each for each in requests if each not in left]
        return {**params, "RequestItems": {table: kept}}

    def _leaving(self, parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        parsed["UnprocessedItems"] = context["left"]

    def _failing(self, model: Any, context: dict[str, Any], **_: Any) -> tuple[Any, dict[str, Any]] | None:
        code = self.fail(model.name)
        if code is None:
            return (mock.Mock(status_code=200), {}) if context.get("all left") else None
        # The message of a real error may quote a key.
        error = {"Code": code, "Message": "the key c2VjcmV0 was not accepted"}
        return mock.Mock(status_code=400), {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 400}}

    # The functions

    def module(self, function: str) -> ModuleType:
        """The module of a function, imported with the variables its role may see."""
        if function not in self._modules:
            path = ROOT / "functions" / function / "app.py"
            spec = importlib.util.spec_from_file_location(f"edge_{function}_{next(_numbers)}", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            hidden = {name for own in OWN.values() for name in own} - OWN[function]
            visible = {k: v for k, v in os.environ.items() if k not in hidden}
            with mock.patch.dict(os.environ, visible, clear=True), self._captured():
                spec.loader.exec_module(module)
            self._modules[function] = module
        return self._modules[function]

    def restart(self) -> None:
        """The next requests meet cold starts."""
        self._modules.clear()

    def reconfigure(self, environment: dict[str, str]) -> None:
        """Change the environment, and let the next requests meet it."""
        self._stack.enter_context(mock.patch.dict(os.environ, environment))
        self.restart()

    @contextlib.contextmanager
    def _captured(self) -> Iterator[None]:
        log = Log(self.output, self.monitor, self._function)
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):  # type: ignore[type-var]
            yield

    def invoke(self, function: str, event: dict[str, Any]) -> Result:
        """The function's result for an event, JSON in and JSON out as on Lambda."""
        self._function = function
        self.monitor.asked(event)
        module = self.module(function)
        with self._captured():
            result = module.handler(json.loads(json.dumps(event)), HandlerContext(function, "512", lambda: 30.0))
        result = json.loads(json.dumps(result))
        self.monitor.answered(function, event, result)
        assert isinstance(result["body"], str)
        assert not result.get("isBase64Encoded")
        return Result(result["statusCode"], result["body"], result["headers"])

    def request(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        content_type: str | None = "application/json",
        encoded: bool = False,
    ) -> Result:
        """Send a request to the function that the template's routes name; ``body`` is text or JSON."""
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        path = unquote(target.partition("?")[0])
        joins = method == "POST" and (path == "/v1:batchJoin" or path.startswith("/v1/types/"))
        return self.invoke("join" if joins else "query", event(method, target, text, content_type, encoded))

    def post(self, target: str, body: Any = None, **more: Any) -> Result:
        return self.request("POST", target, body, **more)

    def get(self, target: str) -> Result:
        return self.request("GET", target)

    # Contents of the tables

    def clear(self) -> None:
        """Empty the log."""
        for row in self.rows():
            key = {name: row[name] for name in ("step_slot", "set_token")}
            self.dynamodb.delete_item(TableName="step-log", Key=key)

    def rows(self) -> list[dict[str, Any]]:
        """Everything in the log."""
        return list(self.dynamodb.scan(TableName="step-log")["Items"])

    def written(self) -> list[str]:
        """The calls that write something other than a function's own fingerprints."""
        writes = ("PutItem", "BatchWriteItem", "UpdateItem", "DeleteItem", "TransactWriteItems")
        own = [f"function#{name}" for name in OWN]
        return [
            operation
            for operation, params in self.calls
            if operation in writes and params.get("Key", {}).get("name", {}).get("S") not in own
        ]

    def release(self, type_name: str, set_id: bytes, crossing: int, *, suppressed: bool = False) -> None:
        """Write what evaluate writes when a set crosses."""
        key = key_of(type_name, set_id)
        statuses = Statuses(self.dynamodb, "statuses")
        cross(statuses, key, (crossing,), int(NOW) + 10**6)
        if suppressed:
            statuses.suppress(key)

    def complete(self, step: int) -> None:
        """Move every slot's horizon to a step, visible at once."""
        for slot in range(SLOTS):
            move_horizon(Statuses(self.dynamodb, "statuses"), slot, step, int(self.now))


def key_of(type_name: str, set_id: bytes) -> bytes:
    """The key of a set."""
    return set_key(Secret.derived("set-pepper", PEPPER), type_name, set_id)


def slot_of_set(type_name: str, set_id: bytes) -> int:
    """The slot of a set."""
    return Layout(SLOTS, 0).slot_of(key_of(type_name, set_id))


def event(
    method: str,
    target: str,
    body: str | None = None,
    content_type: str | None = "application/json",
    encoded: bool = False,
) -> dict[str, Any]:
    """An API Gateway event, payload format 2.0."""
    path, _, query = target.partition("?")
    headers = {"host": "kanon.example", "user-agent": "test"}
    if body is not None and content_type is not None:
        headers["content-type"] = content_type
    result: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": unquote(path),
        "rawQueryString": query,
        "headers": headers,
        "requestContext": {
            "http": {"method": method, "path": unquote(path), "sourceIp": "192.0.2.1"},
            "requestId": "request",
            "stage": "$default",
        },
        "isBase64Encoded": encoded,
    }
    if query:
        result["queryStringParameters"] = dict(pair.partition("=")[::2] for pair in query.split("&"))
    if body is not None:
        result["body"] = body
    return result


def base64url(data: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
