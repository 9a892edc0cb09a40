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
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import boto3

from kanon.local import gateway
from kanon.local.build import Mapped, Wake, build_functions, build_storage, queue_mappings, wakes
from kanon.local.clock import Clock, Trigger
from kanon.local.engines import ENGINES
from kanon.local.functions import Environment, Function, FunctionError, release_process
from kanon.local.meter import Meter
from kanon.local.server import Server
from kanon.local.source import ROOT
from kanon.local.template import REGION, Template
from kanon.operate.stacks import DESCRIPTION

LOCAL = {"Slots": '[{"slots":1,"partitions":1,"from_step":0}]'}
"""Parameters that a stack on one machine has instead of the template's defaults."""
_SWEEP_SECONDS = 6 * 3600
_RETRIES = 2  # of an asynchronous invocation, unless the template says otherwise
_numbers = itertools.count(1)


class Stack:
    """A running stack; use it as a context manager.

    Args:
        parameters: values for the template's parameters, for example ``{"Slots": "8"}``. Without ``Slots`` there is
            one slot: on one machine, more slots only cost time.
        engine: a name in ``engines.ENGINES``.
        start: unix seconds at which simulated time starts; ``None`` for the real clock.
        seed: makes the generated secrets reproducible; ``None`` for random ones.
        name: the stack's name, which is part of ``AWS::StackId`` and so of every noise tape.
        schedule: replaces the template's schedule. The template's limits for parameters then do not apply,
            because they assume the minutes of EventBridge.
        logs: receives what the functions print.
    """

    def __init__(
        self,
        parameters: Mapping[str, str] | None = None,
        *,
        engine: str = "moto",
        start: float | None = None,
        seed: int | None = None,
        name: str = "kanon-local",
        schedule: Trigger | None = None,
        template: Path = ROOT / "template.yaml",
        logs: TextIO | None = None,
    ) -> None:
        self.template = Template.read(template, parameters or {}, name, limits=schedule is None, defaults=LOCAL)
        self.clock = Clock(start)
        self.engine = ENGINES[engine]()
        self.meter = Meter()
        self.logs = logs if logs is not None else io.StringIO()
        self.failures: list[FunctionError] = []
        self._directory = template.parent
        self._prefix = f"{name}-{next(_numbers)}"
        self._seed = seed
        self._schedule = schedule
        self._warm: dict[str, Environment] = {}
        self._warming = threading.Lock()
        self._hidden: list[tuple[float, str, str]] = []  # visible again at, queue url, receipt
        self._swept = start or 0.0

    def __enter__(self) -> Stack:
        self.engine.start()
        try:
            self.session: boto3.Session = self.engine.session()
            self.storage = build_storage(self.template, self.session, self._prefix, self._seed)
            self.functions = self._build_functions()
            arns = {arn: name for name, function in self.functions.items() for arn in (function.arn, function.alias)}
            self.gateway = gateway.Gateway.from_template(self.template, arns)
            self._mappings = queue_mappings(self.template, arns)
            self._wakes = wakes(self.template, arns, self._schedule)
            self._sqs = self.session.client("sqs")
        except BaseException:
            self.engine.stop()
            raise
        self.clock.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clock.uninstall()
        release_process()
        self.engine.stop()

    def deploy(self, parameters: Mapping[str, str]) -> None:
        """Change parameters of the running stack: the functions start anew with them, everything else stays.

        Raises:
            TemplateError: a parameter cannot be used; nothing has changed.
        """
        with self._warming:
            self.template.change(parameters, limits=self._schedule is None)
            self.functions = self._build_functions()
            self._warm.clear()

    def _build_functions(self) -> dict[str, Function]:
        return build_functions(
            self.template,
            self._prefix,
            self._directory,
            self._function_session,
            self.engine.environment(),
            self.logs,
        )

    def _function_session(self, function: str) -> boto3.Session:
        session = self.engine.session()
        self.meter.attach(session, function)
        return session

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

    def answer(self, request: gateway.Request) -> gateway.Response:
        """The gateway's answer to an HTTP request."""
        if len(request.body) > gateway.PAYLOAD_LIMIT:
            return gateway.TOO_LARGE
        found = self.gateway.find(request)
        if found is None:
            return gateway.NOT_FOUND
        route, parameters = found
        event = gateway.event(request, route, parameters, self.clock.now())
        try:
            return gateway.response(self.invoke(route.function, event))
        except FunctionError as error:
            self.failures.append(error)
            return gateway.SERVER_ERROR

    def request(
        self,
        method: str,
        target: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> gateway.Response:
        """A request without a socket; ``body`` is bytes, text, or a value to send as JSON."""
        content = dict(headers or {})
        if body is None or isinstance(body, bytes):
            data = body or b""
        elif isinstance(body, str):
            data = body.encode()
        else:
            data = json.dumps(body).encode()
            content.setdefault("content-type", "application/json")
        return self.answer(gateway.Request(method, target, list(content.items()), data))

    def serve(self, port: int = 0) -> Server:
        """Serve HTTP on loopback, and with it a description of the stack. The caller closes the server."""

        def answer(request: gateway.Request) -> gateway.Response:
            if (request.method, request.target) == ("GET", DESCRIPTION):
                content = json.dumps(self.describe()).encode()
                return gateway.Response(200, [("content-type", "application/json")], content)
            return self.answer(request)

        return Server(answer, port)

    def describe(self) -> dict[str, Any]:
        """The location of the stack's parts, for ``kanon doctor``. It contains no secret."""
        return {
            "name": self.template.stack_name,
            "endpoint": self.engine.endpoint,
            "region": REGION,
            "dead_letters_url": self.template.resolve({"Ref": "DeadLetters"}),
            "lost_events_url": self.template.resolve({"Ref": "LostEvents"}),
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
        """Let simulated time pass: schedules fire, messages return, rows expire."""
        while True:
            now = self.clock.now()
            due, wakes = self._next(now)
            if due > moment:
                break
            self.clock.set(max(due, now))
            self._wake(wakes)
        self.clock.set(moment)
        if moment - self._swept >= _SWEEP_SECONDS:
            self.sweep()

    def run(self, stop: threading.Event) -> None:
        """Follow the real clock until ``stop`` is set."""
        while not stop.is_set():
            due, wakes = self._next(self.clock.now())
            if not stop.wait(max(0.0, due - self.clock.now())):
                self._wake(wakes)
                if self.clock.now() - self._swept >= _SWEEP_SECONDS:
                    self.sweep()

    def tick(self) -> None:
        """Fire every schedule now and run the queues."""
        self._wake(self._wakes)

    def _next(self, now: float) -> tuple[float, list[Wake]]:
        """When something is due after ``now``, and the schedules that fire then."""
        times = [(wake.schedule.next_after(now), wake) for wake in self._wakes]
        returns = (visible for visible, _, _ in self._hidden)
        due = min([*(time for time, _ in times), *returns], default=float("inf"))
        return due, [wake for time, wake in times if time == due]

    def _wake(self, wakes: list[Wake]) -> None:
        for wake in wakes:
            self._invoke_asynchronously(wake.function, wake.payload)
        self.run_queues()

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

    # Queues and rows

    def run_queues(self) -> None:
        """Pass every visible message to its function until no message is visible."""
        now = self.clock.now()
        for visible, url, receipt in [hidden for hidden in self._hidden if hidden[0] <= now]:
            self._hidden.remove((visible, url, receipt))
            self._sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
        quiet = False
        while not quiet:
            quiet = not sum(self._run_batch(mapping) for mapping in self._mappings)

    def _run_batch(self, mapping: Mapped) -> bool:
        """One batch of one queue; false if it was empty."""
        url = self.storage.queue_urls[mapping.queue_arn]
        messages = self._sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=min(10, mapping.batch_size),
            MessageSystemAttributeNames=["All"],
            VisibilityTimeout=43200,  # simulated time decides when it returns, see _hidden
        ).get("Messages", [])
        if not messages:
            return False
        try:
            result = self.invoke(mapping.function, mapping.event(messages))
            failed = mapping.failed(result, messages)
        except FunctionError as error:
            self.failures.append(error)
            failed = {message["MessageId"] for message in messages}
        visible = self.clock.now() + self.storage.visibility[mapping.queue_arn]
        for message in messages:
            if message["MessageId"] in failed:
                self._hidden.append((visible, url, message["ReceiptHandle"]))
            else:
                self._sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return True

    def sweep(self) -> int:
        """Delete the rows whose time to live has passed on the stack's clock; return how many."""
        now = self.clock.now()
        self._swept = now
        return sum(self.engine.expire(table, attribute, now) for table, attribute in self.storage.expiring.items())
