"""Locates the parts of a running stack: one deployed by CloudFormation, or one served on this machine."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import boto3
from botocore import exceptions
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from kanon import clock
from kanon.client import ApiError, Client, Connection, UnexpectedAnswerError
from kanon.errors import KanonError
from kanon.gate.issuer_settings import IssuerSettings
from kanon.gate.schedule import Schedule
from kanon.gate.settings import EvaluateSettings, JoinSettings, QuerySettings
from kanon.gate.storage.aws.control import Control, Place
from kanon.gate.storage.aws.parts import PartObjects
from kanon.gate.storage.aws.statuses import Statuses
from kanon.gate.storage.aws.step_log import StepLog
from kanon.gateway.settings import GatewaySettings
from kanon.keys import fetch_noise_keys
from kanon.noise.words import NoiseKey
from kanon.operate.running_reports import FUNCTIONS, QUEUES, SCHEDULES, RunningReports

CONFIG = Config(connect_timeout=5, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 5})
DESCRIPTION = "/_local/stack"
DESCRIBED = {"name", "endpoint", "region", "dead_letters_url", "lost_events_url", "functions"}
"""The path and the keys of a local stack's description of itself; not part of the API."""
OPTIONAL = ("gateway", "issuer")
"""The functions that not every stack has, besides those of reports."""


class StackError(KanonError):
    """There is no such stack, or it cannot be reached."""


@dataclass(frozen=True)
class RunningStack:
    """A running stack.

    Attributes:
        name: its name.
        join, query, evaluate: the settings of its functions.
        dead_letters_url: the URL of the queue of slot messages that failed.
        lost_events_url: the URL of the queue of lost schedule events and failed calls.
        schedule_name: the name of its EventBridge schedule; None if there is none or it cannot be read.
        session: the boto3 session for its account and region.
        endpoint: the URL of its services; None for AWS.
        protected: whether its tables have deletion protection; None if its parameters do not say.
        reports: its reports; None without them.
        gateway: the settings of its function for relays; None without it.
        issuer: the settings of its function that makes credentials; None without it.
        url: of its API.
        ahead: seconds by which its clock is ahead: that of a rehearsal can be moved.
        list_bucket: the bucket of its lists; empty without listed types.
    """

    name: str
    join: JoinSettings
    query: QuerySettings
    evaluate: EvaluateSettings
    dead_letters_url: str
    lost_events_url: str
    schedule_name: str | None
    session: boto3.Session
    endpoint: str | None = None
    protected: bool | None = None
    reports: RunningReports | None = None
    gateway: GatewaySettings | None = None
    issuer: IssuerSettings | None = None
    url: str = ""
    list_bucket: str = ""
    ahead: float = 0.0
    _clients: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def now(self) -> float:
        """The time on its clock (Unix s)."""
        return clock.now() + self.ahead

    def client(self, service: str) -> Any:
        """A client of one of its services, made at its first use."""
        if service not in self._clients:
            made = self.session.client(service, endpoint_url=self.endpoint, config=CONFIG)  # type: ignore[call-overload]
            self._clients[service] = made
        return self._clients[service]

    @property
    def schedule(self) -> Schedule:
        """Its durations."""
        return Schedule.of(self.evaluate)

    @property
    def control(self) -> Control:
        """Marks, leases and fingerprints."""
        return Control(self.client("dynamodb"), self.evaluate.control_table)

    @property
    def marks(self) -> dict[int, int | None]:
        """The last evaluated step of every slot that was ever leased."""
        slots = {place.slot for place, _ in self.control.rows()}
        return {slot: self.control.mark_of(slot, self.evaluate.layouts) for slot in slots}

    @property
    def longest_memory(self) -> int:
        """The largest number of steps that a crossing of its types is kept."""
        return max(type_.parameters.memory for type_ in self.evaluate.read_types().values())

    def noise_keys(self, if_there: Sequence[str] = ()) -> dict[str, NoiseKey]:
        """The configured noise keys by id, read from their secret, and those of ``if_there`` that it has.

        Raises:
            ConfigurationError: the secret lacks one of them, or is no JSON object of texts.
        """
        settings = self.evaluate
        ids = [entry.id for entry in settings.noise_keys]
        return fetch_noise_keys(self.client("secretsmanager"), settings.noise_key_secret, ids, if_there)

    @property
    def statuses(self) -> Statuses:
        """Horizons."""
        return Statuses(self.client("dynamodb"), self.evaluate.statuses_table)

    def parts(self, place: Place) -> PartObjects:
        """The objects of a slot."""
        return PartObjects(self.client("s3"), self.evaluate.states_bucket, place)

    @property
    def log(self) -> StepLog:
        """The joins."""
        return StepLog(self.client("dynamodb"), self.evaluate.step_log_table, self.evaluate.layouts)


def deployed_stack(name: str, session: boto3.Session) -> RunningStack:
    """A stack in AWS, from its outputs and the environments of its functions.

    Raises:
        ConfigurationError: the environment of a function is invalid.
        StackError: the stack does not exist, or cannot be read.
    """
    try:
        (found,) = session.client("cloudformation", config=CONFIG).describe_stacks(StackName=name)["Stacks"]
        outputs = {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", [])}
        given = {entry["ParameterKey"]: entry["ParameterValue"] for entry in found.get("Parameters", [])}
        protection = given.get("DeletionProtection")
        parts = ["join", "query", "evaluate", *(part for part in OPTIONAL if _output_of(part) in outputs)]
        described = {
            "name": name,
            "functions": {part: _environment(session, outputs, part) for part in parts},
            "dead_letters_url": outputs["DeadLettersUrl"],
            "lost_events_url": outputs["LostEventsUrl"],
        }
        return replace(
            described_stack(described, session, None),
            schedule_name=_physical(session, name, "EvaluateSchedule"),
            protected=None if protection is None else protection == "ON",
            reports=_deployed_reports(name, outputs, session) if _output_of("rotate") in outputs else None,
            url=outputs["ApiUrl"],
            list_bucket=outputs.get("ListBucket", ""),
        )
    except KeyError as error:
        raise StackError(f"stack {name} has no {error}: is it a stack of kanon?") from error
    except (BotoCoreError, ClientError) as error:
        raise StackError(f"stack {name} cannot be read: {reason(error)}") from error


def _environment(session: boto3.Session, outputs: Mapping[str, str], function: str) -> dict[str, str]:
    """The variables of a function, which an output names."""
    client = session.client("lambda", config=CONFIG)
    return client.get_function_configuration(FunctionName=outputs[_output_of(function)])["Environment"]["Variables"]


def _output_of(function: str) -> str:
    return f"{function.title()}Function"


def _deployed_reports(name: str, outputs: Mapping[str, str], session: boto3.Session) -> RunningReports:
    environments = {function: _environment(session, outputs, function) for function in FUNCTIONS}
    dead_letters = {queue: outputs[f"{queue}DeadUrl"] for queue in QUEUES}
    nested = _physical(session, name, "ReportsStack")
    schedules = {one: _physical(session, nested, one) for one in SCHEDULES.values()} if nested else {}
    return RunningReports.of(environments, dead_letters, schedules, partial(session.client, config=CONFIG))


def _physical(session: boto3.Session, stack: str, logical_id: str) -> str | None:
    """The physical id of a resource of a stack; None if it cannot be read."""
    cloudformation = session.client("cloudformation", config=CONFIG)
    try:
        found = cloudformation.describe_stack_resource(StackName=stack, LogicalResourceId=logical_id)
    except (BotoCoreError, ClientError):
        return None
    physical: str = found["StackResourceDetail"]["PhysicalResourceId"]
    return physical


def local_stack(url: str) -> RunningStack:
    """The stack that ``kanon serve`` serves at ``url``.

    Raises:
        StackError: there is no local stack at ``url``.
    """
    described: dict[str, Any] = {}
    try:
        with Client(Connection(url, timeout=10)) as client, suppress(UnexpectedAnswerError):
            described = client.call("GET", DESCRIPTION)
    except (ApiError, ValueError) as error:
        detail = error.__cause__ or error
        raise StackError(f"no local stack answers at {url} ({detail}): start one with `kanon serve`") from error
    if not described.keys() >= DESCRIBED or not described["endpoint"]:
        raise StackError(f"{url} is not a local stack: start one with `kanon serve`, and give its URL as --url")
    session = boto3.Session("local", "local", region_name=described["region"])
    return replace(described_stack(described, session, described["endpoint"]), url=url)


def described_stack(described: Mapping[str, Any], session: boto3.Session, endpoint: str | None) -> RunningStack:
    """The stack of a description: what a local stack says of itself, or as much as every stack in AWS has.

    Raises:
        ConfigurationError: the environment of a function is invalid.
    """
    client = partial(session.client, endpoint_url=endpoint, config=CONFIG)
    functions, queues = described["functions"], described.get("queues", {})
    dead_letters = {queue: queues[f"{queue}Dead"] for queue in QUEUES if f"{queue}Dead" in queues}
    reports = RunningReports.of(functions, dead_letters, {}, client) if dead_letters else None
    return RunningStack(
        described["name"],
        JoinSettings.from_environment(functions["join"]),
        QuerySettings.from_environment(functions["query"]),
        EvaluateSettings.from_environment(functions["evaluate"]),
        described["dead_letters_url"],
        described["lost_events_url"],
        None,
        session,
        endpoint,
        reports=replace(reports, deployed=False) if reports else None,
        gateway=GatewaySettings.from_environment(functions["gateway"]) if "gateway" in functions else None,
        issuer=IssuerSettings.from_environment(functions["issuer"]) if "issuer" in functions else None,
        ahead=described.get("ahead", 0.0),
        list_bucket=functions.get("list", {}).get("KANON_LIST_BUCKET", ""),
    )


_SHELL: dict[type[BotoCoreError], str] = {
    exceptions.NoRegionError: "no region is set: give --region",
    exceptions.NoCredentialsError: "no credentials were found: sign in, or give --aws-profile",
    exceptions.ProfileNotFound: "the AWS configuration has no such profile",
    exceptions.HTTPClientError: "AWS could not be reached",
    exceptions.ConnectionError: "AWS could not be reached",
}
"""Problems of the shell, not of permissions."""


def reason(error: BotoCoreError | ClientError) -> str:
    """The reason of a failed call, without the error's text, which may contain a key."""
    if isinstance(error, ClientError):
        return f"{error.operation_name} answered {error.response['Error']['Code']}"
    return next((text for kind, text in _SHELL.items() if isinstance(error, kind)), type(error).__name__)
