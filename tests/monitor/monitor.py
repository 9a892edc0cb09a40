"""Monitors every deployment that a test starts: the AWS calls of its functions, their input and their output.

Fails any test in which a function exceeds its role or leaks data. ``monitor_every_stack`` monitors all stacks of the
local engine; the other tests do not mention it.
"""

from __future__ import annotations

import binascii
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import gcd
from typing import Any, TextIO
from unittest import mock

from kanon.gateway.oblivious import GATEWAY_PATH, KEYS_PATH
from kanon.http.bodies import RequestError, read_json
from kanon.http.encoding import decode_base64
from kanon.keys import Secret
from kanon.local.functions import Environment, Function, FunctionError
from kanon.local.source import ROOT
from kanon.local.stack import Stack
from kanon.local.template import BUCKET, QUEUE, SECRET, TABLE, Template
from tests.monitor import allowed_output
from tests.monitor.allowed_reports import is_reports, wrong_reports_answer
from tests.monitor.permissions import Call, Resources, permissions
from tests.monitor.private import LONGEST, SHORTEST, Private

_live: list[Monitor] = []
_by_function: dict[str, Monitor] = {}  # by the function's full name, which no two stacks share

SECRETS = (
    "set-pepper",
    "client-key",
    "gateway-key",
    "lister-key",
    "issuer-key",
    "account-key",
    "noise-key/1",
    "noise-key/2",
)
PRIVATE_FIELDS = {
    "payload",
    "report_id",
    "reporting_origin",
    "attribution_destination",
    "job_request_id",
    "input_data_blob_prefix",
    "input_data_blob_prefixes",
    "input_data_bucket_name",
    "output_data_blob_prefix",
    "output_data_bucket_name",
}
_SET = re.compile(r"/sets/([^/:]+)")


class Monitor:
    """One deployment: its template, and the ARN of everything its functions may name in a call."""

    def __init__(self, template: Template, arns: Mapping[str, str]) -> None:
        self.allowed = permissions(template)
        self.calls: set[Call] = set()
        self.closed = False
        self.private = Private()
        self.resources = Resources(arns)
        self._period = int(template.parameters["Period"])
        self._said: dict[str, list[str]] = defaultdict(list)
        self._problems: set[str] = set()
        self._listed: set[bytes] = set()
        _live.append(self)

    @classmethod
    def of(cls, stack: Stack) -> Monitor:
        """The watch of a running stack."""
        return _by_function[stack.functions["join"].name]

    # Calls of a function

    def started(self, function: Function) -> None:
        """A copy of a function starts, one of the gate perhaps with another period than the template's."""
        self._period = gcd(self._period, int(function.environment.get("KANON_PERIOD", 0)))

    def attach(self, session: Any, function: str) -> Any:
        """See every call of the clients this session will create."""

        def called(params: Mapping[str, Any], model: Any, **_: Any) -> None:
            self.called(function, model.service_model.endpoint_prefix, model.name, params)

        def read(parsed: Mapping[str, Any], **_: Any) -> None:
            self.secret(parsed.get("SecretString", "{}"))

        session.events.register("before-parameter-build", called, unique_id="watch-calls")
        session.events.register("after-call.secretsmanager", read, unique_id="watch-secrets")
        return session

    def called(self, function: str, service: str, operation: str, params: Mapping[str, Any]) -> None:
        """An AWS call is about to be made."""
        for call in self.resources.calls(function, service, operation, params):
            if call not in self.calls:
                self.calls.add(call)
                if not any(permission.covers(call) for permission in self.allowed[function]):
                    self._problems.add(f"the role of {function} refuses {call.action} on {call.resource} {call.key}")
        for entry in (params, *params.get("Entries", [])):
            if "MessageBody" in entry:
                queue = params["QueueUrl"].rpartition("-")[2]
                self._problems |= set(allowed_output.wrong_message(queue, entry["MessageBody"]))
        if operation != "Invoke" and any(value in content for content in _contents(params) for value in self._listed):
            self._problems.add(f"{function} writes a value of a listed type in clear text with {operation}")
        self.private.add(*(_objects(params) if service == "s3" else _written(params)))
        if "SecretString" in params:
            self.secret(params["SecretString"])

    def secret(self, text: str) -> None:
        """A secret was read; values derived from it are as secret."""
        texts = json.loads(text).values() if text.startswith("{") else [text]
        for each in texts:
            self.private.add(each, *(Secret.derived(name, each).key for name in SECRETS))

    # Input and output

    def asked(self, event: Any) -> None:
        """An event arrives."""
        if isinstance(event, dict) and "rawPath" in event:
            values = [value.encode(errors="surrogatepass") for value in _values(event)]
            self._listed.update(value for value in values if len(value) >= SHORTEST)
            self.private.add(*values, *(_reported(event) if is_reports(event["rawPath"]) else _named(event)))

    def answered(self, function: str, event: Any, result: Any) -> None:
        """An event is answered."""
        if isinstance(result, dict) and "statusCode" in result:
            method, path = event["requestContext"]["http"]["method"], event["rawPath"]
            status, headers, body = result["statusCode"], result.get("headers") or {}, result["body"]
            if path in (GATEWAY_PATH, KEYS_PATH):
                self._problems |= set(allowed_output.wrong_relayed_answer(path, result))
                return
            asked = event.get("body") or ""
            if event.get("isBase64Encoded") and status == 200:
                asked = binascii.a2b_base64(asked).decode(errors="replace")
            if is_reports(path):
                self._problems |= {*allowed_output.wrong_headers(headers), *wrong_reports_answer(path, status, body)}
            else:
                self._problems |= set(allowed_output.wrong_answer(method, path, asked, status, headers, body))
            if status >= 400 or '"error":' in body:
                self.private.say(body)
        elif result is not None and set(result) != {"batchItemFailures"}:
            self._problems.add(f"{function} returns {result}")

    def raised(self, payload: Mapping[str, str]) -> None:
        """A handler raised: Lambda shows the type and the message to the caller and in the log."""
        self._problems |= set(allowed_output.wrong_text(payload["errorMessage"]))
        self.private.say(payload["errorMessage"])

    def wrote(self, function: str, text: str) -> None:
        """A function wrote to its log."""
        self._said[function].append(text)

    # Problems

    def look(self) -> list[str]:
        """The problems since the last call."""
        said, self._said = self._said, defaultdict(list)
        for function, texts in said.items():
            for line in "".join(texts).splitlines():
                self._problems |= set(self._wrong_line(function, line))
        problems, self._problems = self._problems, set()
        return sorted(problems) + [f"private: {text}" for text in self.private.told()]

    def _wrong_line(self, function: str, line: str) -> Iterator[str]:
        if not line.startswith("{"):
            # A handler that raised is printed with its trace, by Lambda as by the local stack.
            self.private.say(line)
            if re.match(r"[A-Z]\w*(Error|Exception)\b|[a-z_.]+\.\w+(Error|Exception)\b", line):
                yield from allowed_output.wrong_text(line)
            elif not re.match(r"\s|Traceback |During handling|The above exception|$", line):
                yield f"{function} printed {line!r}"
            return
        entry = json.loads(line)
        if "_aws" in entry:
            yield from allowed_output.wrong_metric(entry, function, self._period)
            return
        yield from allowed_output.wrong_log(entry)
        self.private.say(" ".join(str(v) for k, v in entry.items() if k not in ("timestamp", "function_request_id")))


def find_problems() -> list[str]:
    """The problems of all deployments since the last call."""
    problems = [problem for monitor in _live for problem in monitor.look()]
    _live[:] = [monitor for monitor in _live if not monitor.closed]
    return problems


class Log:
    """A function's log that is read along."""

    def __init__(self, log: TextIO, monitor: Monitor, function: str) -> None:
        self._log, self._watch, self._function = log, monitor, function

    def write(self, text: str) -> int:
        self._watch.wrote(self._function, text)
        return self._log.write(text)

    def flush(self) -> None:
        self._log.flush()


def _written(params: Mapping[str, Any]) -> Iterator[bytes]:
    """Set keys, tokens and members in a call to a table."""
    items: list[Any] = [params[name] for name in ("Key", "Item", "ExpressionAttributeValues") if name in params]
    for part in (part for entry in params.get("TransactItems", []) for part in entry.values()):
        items += [part[name] for name in ("Key", "Item", "ExpressionAttributeValues") if name in part]
    for asked in params.get("RequestItems", {}).values():
        items += asked["Keys"] if isinstance(asked, dict) else [put["PutRequest"]["Item"] for put in asked]
    for item in items:
        for name, value in item.items():
            if isinstance(value.get("B"), bytes) and name != "step_slot" and len(value["B"]) > 1:
                yield value["B"]
                if name == "set_token" and len(value["B"]) > 32:
                    yield value["B"][32:]


def _objects(params: Mapping[str, Any]) -> Iterator[str]:
    """The bucket and the objects a call names; of a key also its last part: the first ones may be of any object.

    Of a bucket its end, because it begins with the name of the stack, which is public.
    """
    yield params["Bucket"][-LONGEST:]
    keys = [params.get("Key", ""), *(entry["Key"] for entry in params.get("Delete", {}).get("Objects", []))]
    for key in keys:
        yield key
        yield key.rpartition("/")[2]


def _named(event: Mapping[str, Any]) -> Iterator[bytes | str]:
    """Sets and clients a request names, as text and decoded."""
    sets, clients = set(_SET.findall(event["rawPath"])), set()
    with suppress(RequestError, ValueError, TypeError, AttributeError):  # then it is not a valid body
        body = _body(event)
        joins, asked = body.get("joins", []), body.get("setsForType", body.get("sets", []))
        clients.add(body.get("client"))
        for entry in [*(joins if isinstance(joins, list) else []), *(asked if isinstance(asked, list) else [asked])]:
            clients.add(entry.get("client"))
            sets.update((entry.get("set"), *entry.get("hashes", [])))
    yield from (client for client in clients if isinstance(client, str))
    for text in sets:
        if isinstance(text, str):
            yield text
            with suppress(ValueError):
                yield decode_base64(text)


def _reported(event: Mapping[str, Any]) -> Iterator[str]:
    """What a request of reports names: origins, reports, jobs, buckets by their ends, objects, encrypted payloads."""
    named: dict[str, Any] = dict(event.get("queryStringParameters", {}))
    with suppress(RequestError, ValueError, TypeError, AttributeError):  # then it is not a valid body
        body = _body(event, "{}")
        named |= body
        named |= json.loads(body.get("shared_info", "{}"))
        named |= {"payload": [each["payload"] for each in body.get("aggregation_service_payloads", [])]}
    for name in PRIVATE_FIELDS & named.keys():
        values = named[name] if isinstance(named[name], list) else [named[name]]
        texts = [value for value in values if isinstance(value, str)]
        yield from (text[-LONGEST:] if name.endswith("_bucket_name") else text for text in texts)


def _values(event: Mapping[str, Any]) -> Iterator[str]:
    """The values of listed types that a request carries."""
    with suppress(RequestError, ValueError, TypeError, AttributeError):  # then it is not a valid body
        body = _body(event)
        joins = body.get("joins", [])
        for entry in [body, *(joins if isinstance(joins, list) else [])]:
            if isinstance(entry, dict) and isinstance(entry.get("value"), str):
                yield entry["value"]


def _contents(node: Any) -> Iterator[bytes]:
    """Every text and all bytes in the parameters of a call: of rows, objects and messages alike."""
    if isinstance(node, str | bytes):
        yield node.encode(errors="surrogatepass") if isinstance(node, str) else node
    elif isinstance(node, Mapping | list | tuple):
        for value in node.values() if isinstance(node, Mapping) else node:
            yield from _contents(value)


def _body(event: Mapping[str, Any], absent: str = "") -> Any:
    """The body of a request, decoded."""
    text = event.get("body") or absent
    return _read(binascii.a2b_base64(text).decode() if event.get("isBase64Encoded") else text)


def _read(text: str) -> Any:
    """A body, by the service's own reader only if it has to be: most are JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return read_json(text)


@contextmanager
def monitor_every_stack() -> Iterator[None]:
    """Watch every stack of the service's own template that is started meanwhile."""
    enter, leave = Stack.__enter__, Stack.__exit__
    cold_start, invoke = Function.cold_start, Environment.invoke

    def entered(stack: Stack) -> Stack:
        enter(stack)
        if stack.template.directory == ROOT:
            monitor = Monitor(stack.template, _arns(stack.template))
            _by_function.update({function.name: monitor for function in stack.functions.values()})
        return stack

    def left(stack: Stack, *error: Any) -> None:
        leave(stack, *error)
        for function in stack.functions.values():
            if monitor := _by_function.pop(function.name, None):
                monitor.closed = True

    def started(function: Function) -> Environment:
        monitor = _by_function.get(function.name)
        if monitor is None:
            return cold_start(function)
        monitor.started(function)
        name, session = function.directory.name, function.session
        seen = replace(
            function,
            session=lambda folder: monitor.attach(session(folder), name),
            logs=Log(function.logs, monitor, name),  # type: ignore[arg-type]
        )
        with _raising(monitor):
            return cold_start(seen)

    def invoked(environment: Environment, event: Any, timeout: float | None = None) -> Any:
        function = environment._function
        monitor = _by_function.get(function.name)
        if monitor is None:
            return invoke(environment, event, timeout)
        monitor.asked(event)
        with _raising(monitor):
            result = invoke(environment, event, timeout)
        monitor.answered(function.directory.name, event, result)
        return result

    with (
        mock.patch.object(Stack, "__enter__", entered),
        mock.patch.object(Stack, "__exit__", left),
        mock.patch.object(Function, "cold_start", started),
        mock.patch.object(Environment, "invoke", invoked),
    ):
        yield


@contextmanager
def _raising(monitor: Monitor) -> Iterator[None]:
    try:
        yield
    except FunctionError as error:
        monitor.raised(error.payload)
        raise


def _arns(template: Template) -> dict[str, str]:
    """The ARN behind every name the functions may use in a call. A secret is named by its ARN."""
    arns = {}
    for _, part in template.every():
        for resource in part.resources(TABLE, QUEUE, BUCKET, SECRET):
            name = part.resolve({"Ref": resource.logical_id})
            arn = part.resolve({"Fn::GetAtt": [resource.logical_id, "Arn"]})
            arns[name] = name if resource.type == SECRET else arn
    return arns
