"""The whole service in one process, built from template.yaml.

The handlers, their environment variables and the events are real. AWS is emulated (``engines``), and the clock can
be simulated.
"""

from __future__ import annotations

import io
import itertools
import json
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import unquote, urlsplit

import boto3
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders

from kanon.console.answering import Console
from kanon.local import gateway
from kanon.local.build import Wake, build_functions, build_storage, function_urls, random_text, wakes
from kanon.local.clock import Clock, ScheduleExpression
from kanon.local.engines import Emulator, Ministack
from kanon.local.expiry import ObjectTimes
from kanon.local.functions import Environment, Function, FunctionError, release_process
from kanon.local.meter import Meter
from kanon.local.queues import Queues, queue_mappings
from kanon.local.server import ApiServer
from kanon.local.source import ROOT
from kanon.local.template import QUEUE, REGION, Template
from kanon.operate.stacks import DESCRIPTION

LOCAL = {"Slots": '[{"slots":1,"partitions":1,"from_step":0}]'}
"""Parameters of a local stack that differ from the template's defaults."""
_SWEEP_SECONDS = 6 * 3600
MOST_STEPS = 100
"""The most steps that one move of the clock may pass."""
_POLL_SECONDS = 1.0  # of the queues, on the real clock
_RETRIES = 2  # of an asynchronous invocation, unless the template says otherwise
_numbers = itertools.count(1)


class Stack:
    """A running stack; use it as a context manager.

    Args:
        parameters: values for the template's parameters, for example ``{"Slots": "8"}``. Without ``Slots`` there is
            one slot: on one machine, more slots only cost time.
        engine: the emulator of AWS.
        start: unix seconds at which simulated time starts; ``None`` for the real clock.
        seed: makes the generated secrets reproducible; ``None`` for random ones.
        name: the stack's name, a part of ``AWS::StackId`` and so of every noise tape.
        schedule: replaces the template's schedule. The template's limits for parameters then do not apply,
            because they assume the minutes of EventBridge.
        logs: receives what the functions print.
    """

    def __init__(
        self,
        parameters: Mapping[str, str] | None = None,
        *,
        engine: type[Emulator] = Ministack,
        start: float | None = None,
        seed: int | None = None,
        name: str = "kanon-local",
        schedule: ScheduleExpression | None = None,
        template: Path = ROOT / "template.yaml",
        logs: TextIO | None = None,
    ) -> None:
        self.template = Template.read(template, parameters or {}, name, limits=schedule is None, defaults=LOCAL)
        self.clock = Clock(start)
        self.engine = engine()
        self.console = Console(move=self.move)
        self.logs = logs if logs is not None else io.StringIO()
        self.failures: list[FunctionError] = []
        self._prefix = f"{name}-{next(_numbers)}"
        self._seed = seed
        self._schedule = schedule
        self._warm: dict[str, Environment] = {}
        self._warming = threading.Lock()
        self._passing = threading.RLock()  # time passes in the thread of `run`, and in one that moves the clock
        self._object_times = ObjectTimes(self.clock.now)
        self._swept = start or 0.0

    def __enter__(self) -> Stack:
        self.engine.start()
        try:
            self.session: boto3.Session = self._session()
            self.meter = Meter(self.session.client("dynamodb"))
            self._make_keys()
            self.storage = build_storage(self.template, self.session, self._prefix, self._seed)
            self.functions = self._build_functions()
            arns = {arn: name for name, function in self.functions.items() for arn in (function.arn, function.alias)}
            self.gateway = gateway.ApiGateway.from_template(self.template, arns)
            self.urls = function_urls(self.template, self.functions)
            self._wakes = wakes(self.template, arns, self._schedule)
            self._sqs = self.session.client("sqs")
            mappings = queue_mappings(self.template, arns)
            self.queues = Queues(mappings, self.storage, self._sqs, self.clock.now, self.invoke, self.failures)
        except BaseException:
            self.engine.stop()
            raise
        self.clock.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.clock.uninstall()
        release_process()
        self.engine.stop()

    def deploy(self, parameters: Mapping[str, str]) -> None:
        """Change parameters of the running stack: the functions restart with them; data stays.

        Raises:
            TemplateError: a parameter is invalid; nothing was changed.
        """
        with self._warming:
            self.template.change(parameters, limits=self._schedule is None)
            self._make_keys()
            self.functions = self._build_functions()
            self.urls = function_urls(self.template, self.functions)
            self._warm.clear()

    def _make_keys(self) -> None:
        """As the operator of a stack does before its first listed type, and its first one with credentials."""
        given, client = self.template.parameters, self.session.client("secretsmanager")
        types = given.get("Types", "")
        if '"listed"' in types and not given["ListerKey"]:
            from kanon.operate.lister_key import lister_key

            key = lister_key(client, self._prefix, partial(random_text, "lister", self._seed))
            self.template.change({"ListerKey": key.public, "ListerKeySecret": key.secret}, limits=False)
        if '"credential"' in types and not given["IssuerKeySecret"]:
            from kanon.operate.issuer import issuer_key

            arn = issuer_key(client, self._prefix, partial(random_text, "issuer", self._seed))
            self.template.change({"IssuerKeySecret": arn}, limits=False)

    def _build_functions(self) -> dict[str, Function]:
        environment = self.engine.environment()
        return build_functions(self.template, self._prefix, self._function_session, environment, self.logs)

    def _session(self) -> boto3.Session:
        session = self.engine.session()
        self._object_times.attach(session)
        return session

    def _function_session(self, function: str) -> boto3.Session:
        session = self._session()
        self.meter.attach(session, function)
        session.events.register("before-send.lambda.Invoke", self._invoked)
        return session

    def _invoked(self, request: AWSPreparedRequest, **_: Any) -> Any:
        """Answer a function that invokes another one, named by the ARN of its alias, and waits for it."""
        alias = unquote(urlsplit(request.url).path.split("/")[3])
        name = next(name for name, function in self.functions.items() if function.alias == alias)
        headers = HTTPHeaders()
        assert isinstance(request.body, bytes)
        try:
            result = self.invoke(name, json.loads(request.body))
        except FunctionError as error:
            self.failures.append(error)
            result = error.payload
            headers["X-Amz-Function-Error"] = "Unhandled"
        return AWSResponse(request.url, 200, headers, io.BytesIO(json.dumps(result).encode()))

    # Functions

    def cold_start(self, function: str) -> Environment:
        """A new copy of a function, beside the one that serves requests."""
        return self.functions[function].cold_start()

    def restart(self, function: str) -> None:
        """Make the next event of a function a cold start."""
        self._warm.pop(function, None)

    def invoke(self, function: str, event: Any, timeout: float | None = None) -> Any:
        """Invoke the warm copy of a function, starting it if there is none."""
        with self._warming:
            warm = self._warm.get(function) or self.cold_start(function)
            self._warm[function] = warm
        return warm.invoke(event, timeout)

    # HTTP

    def answer(self, request: gateway.GatewayRequest) -> gateway.GatewayResponse:
        """The gateway's answer to an HTTP request; that of a function, if the host is that of its URL."""
        if len(request.body) > gateway.PAYLOAD_LIMIT:
            return gateway.TOO_LARGE
        host = next((value for name, value in request.headers if name.lower() == "host"), "")
        if host in self.urls:
            return self._called(self.urls[host], gateway.event_at_url(request, host, self.clock.now()))
        found = self.gateway.find(request)
        if found is None:
            return gateway.NOT_FOUND
        route, parameters = found
        return self._called(route.function, gateway.event(request, route, parameters, self.clock.now()))

    def _called(self, function: str, event: dict[str, Any]) -> gateway.GatewayResponse:
        try:
            return gateway.response(self.invoke(function, event))
        except FunctionError as error:
            self.failures.append(error)
            return gateway.SERVER_ERROR

    def request(
        self, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> gateway.GatewayResponse:
        """A request without a socket; ``body`` is bytes, text, or a value to send as JSON."""
        content = dict(headers or {})
        if body is None or isinstance(body, bytes):
            data = body or b""
        elif isinstance(body, str):
            data = body.encode()
        else:
            data = json.dumps(body).encode()
            content.setdefault("content-type", "application/json")
        return self.answer(gateway.GatewayRequest(method, target, list(content.items()), data))

    def serve(self, port: int = 0) -> ApiServer:
        """Serve HTTP and a description of the stack on loopback. The caller closes the server."""

        def answer(request: gateway.GatewayRequest) -> gateway.GatewayResponse:
            if (request.method, request.target) == ("GET", DESCRIPTION):
                content = json.dumps(self.describe()).encode()
                return gateway.GatewayResponse(200, [("content-type", "application/json")], content)
            headers = {name.lower(): value for name, value in request.headers}
            shown = self.console.answer(
                request.method, request.target.partition("?")[0], headers, request.body.decode(errors="replace")
            )
            if shown is not None:
                return gateway.GatewayResponse(shown.status, list(shown.headers.items()), shown.body.encode())
            return self.answer(request)

        return ApiServer(answer, port, self.gateway.cors)

    def describe(self) -> dict[str, Any]:
        """The location of the stack's parts, for ``kanon doctor``. It contains no secret."""
        return {
            "name": self.template.stack_name,
            "endpoint": self.engine.endpoint,
            "region": REGION,
            "ahead": self.clock.ahead,
            "dead_letters_url": self.template.resolve({"Ref": "DeadLetters"}),
            "lost_events_url": self.template.resolve({"Ref": "LostEvents"}),
            "queues": {
                queue.logical_id: part.resolve({"Ref": queue.logical_id})
                for part, queue in self.template.every_resource(QUEUE)
            },
            "functions": {
                name: {k: v for k, v in function.environment.items() if k.startswith("KANON_")}
                for name, function in self.functions.items()
            },
        }

    # Time

    def advance(self, seconds: float) -> None:
        """Let simulated time pass."""
        self.advance_to(self.clock.now() + seconds)

    def advance_to(self, moment: float) -> None:
        """Let simulated time pass: schedules fire, batches and messages become due, rows and objects expire."""
        self.run_queues()
        while True:
            now = self.clock.now()
            fires, wakes = self._fires(now)
            due = min(fires, self.queues.due())
            if due > moment:
                break
            self.clock.set(max(due, now))
            self._wake(wakes if due == fires else [])
        self.clock.set(moment)
        if moment - self._swept >= _SWEEP_SECONDS:
            self.sweep()

    def move(self, moment: float) -> None:
        """Move the clock of a rehearsal forwards; every step on the way is evaluated. Any thread may call it.

        Noise is drawn once for each step. If the clock went back, the noise of a step would meet other joins.

        Raises:
            ValueError: the moment (Unix s) has passed, or is more than ``MOST_STEPS`` away.
        """
        with self._passing:
            ahead = moment - self.clock.now()
            if not 0 <= ahead <= MOST_STEPS * int(self.template.parameters["Period"]):
                raise ValueError(f"the clock moves forwards only, by at most {MOST_STEPS} steps at once")
            self.advance_to(moment)

    def run(self, stop: threading.Event) -> None:
        """Follow the real clock until ``stop`` is set."""
        fires, wakes = self._fires(self.clock.now())
        while not stop.wait(self._pause(fires)):
            with self._passing:
                if self.clock.now() < fires:
                    self.run_queues()
                    continue
                self._wake(wakes)
                if self.clock.now() - self._swept >= _SWEEP_SECONDS:
                    self.sweep()
                fires, wakes = self._fires(self.clock.now())

    def _pause(self, fires: float) -> float:
        """Seconds until the next work. It is short, because a request may send a message at any time."""
        return max(0.0, min(_POLL_SECONDS, min(fires, self.queues.due()) - self.clock.now()))

    def tick(self) -> None:
        """Fire every schedule now and run the queues; every batch is passed on immediately."""
        self._wake(self._wakes, flush=True)

    def _fires(self, now: float) -> tuple[float, list[Wake]]:
        """The next time after ``now`` at which schedules fire, and these schedules."""
        times = [(wake.schedule.next_after(now), wake) for wake in self._wakes]
        first = min((time for time, _ in times), default=float("inf"))
        return first, [wake for time, wake in times if time == first]

    def _wake(self, wakes: list[Wake], flush: bool = False) -> None:
        for wake in wakes:
            self._invoke_asynchronously(wake.function, wake.payload)
        self.run_queues(flush)

    def _invoke_asynchronously(self, function: str, payload: Any) -> None:
        """Invoke as Lambda does for EventBridge: retry, then send the event to the failure destination."""
        for _ in range(_RETRIES + 1):
            try:
                self.invoke(function, payload)
                return
            except FunctionError as error:
                self.failures.append(error)
        destination = self.functions[function].on_failure
        if destination is not None:
            record = {"requestPayload": payload, "responsePayload": self.failures[-1].payload}
            self._sqs.send_message(QueueUrl=self.storage.queue_urls[destination], MessageBody=json.dumps(record))

    # Queues, rows and objects

    def run_queues(self, flush: bool = False) -> None:
        """Pass visible messages to their functions until none is visible; ``flush`` ends all windows of batches."""
        self.queues.run(flush)

    def sweep(self) -> int:
        """Delete the rows and objects that have expired on the stack's clock; return their number."""
        now = self.clock.now()
        self._swept = now
        rows = sum(self.engine.expire(table, attribute, now) for table, attribute in self.storage.expiring.items())
        return rows + self._object_times.expire(self.session, self.storage.lifetimes)
