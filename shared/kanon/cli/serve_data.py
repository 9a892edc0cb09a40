"""The service of one machine, as ``kanon serve --data`` runs it, and its API keys."""

import errno
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from socket import gaierror
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kanon.cli.directories import directory_errors
from kanon.cli.errors import needs
from kanon.cli.screen import program, warn
from kanon.cors import Cors
from kanon.serving.access import Access, AuthMode, BearerCheck

if TYPE_CHECKING:
    from kanon.gate.enrol_routes import EnrolRoutes, Identify
    from kanon.gate.types import Type
    from kanon.gateway.answering import Gateway
    from kanon.serving.api_keys import ApiKeys
    from kanon.serving.directory import Directory
    from kanon.serving.lists import Lister
    from kanon.serving.reporting import DirectoryReports
    from kanon.serving.tokens import AcceptedTokens

ONLY_DATA = (
    *("host", "join_auth", "batch_auth", "jwks", "issuer", "audience"),
    *("report_origins", "epsilon_cap", "delta_cap", "gateway", "list_auth", "review_steps", "list_days"),
    *("enrol_auth", "enrol_verifier"),
)
"""The options of ``kanon serve`` that need ``--data``."""

ServiceDirectory = Annotated[Path, typer.Option("--data", metavar="DIR", help="Directory of `kanon serve --data`.")]
OfReports = tuple[str | None, str | None, str | None]
"""What the options say of reports: the origins, and the caps of epsilon and delta."""


@dataclass(frozen=True)
class ServeOptions:
    """Where a service keeps everything, where it listens, to pages of which origins, and whether to relays."""

    data: Path
    host: str
    port: int
    cors: Cors
    gateway: bool

    def relayed(self, directory: "Directory") -> "Gateway | None":
        """The gateway of a directory, if it is on."""
        if not self.gateway:
            return None
        from kanon.serving.relayed import open_gateway

        return open_gateway(directory)


@dataclass(frozen=True)
class Credentials:
    """Who may call, and what tokens are checked with."""

    join: AuthMode
    batch: AuthMode
    jwks: Path | None
    issuer: str | None
    audience: str | None
    lists: AuthMode = AuthMode.KEY
    enrol: AuthMode | None = None
    verifier: str | None = None

    def check(self) -> None:
        """Refuse options that do not fit together."""
        tokens = AuthMode.JWT in (self.join, self.batch, self.lists, self.enrol)
        given = [value is not None for value in (self.jwks, self.issuer, self.audience)]
        if self.batch is AuthMode.OPEN:
            raise typer.BadParameter("batches always need KEY or JWT", param_hint="--batch-auth")
        if self.enrol is AuthMode.OPEN:
            raise typer.BadParameter("one person is one account: KEY or JWT", param_hint="--enrol-auth")
        if self.enrol is not None and self.verifier is not None:
            raise typer.BadParameter("has no effect with --enrol-verifier", param_hint="--enrol-auth")
        if self.verifier is not None:  # before a directory is made
            from kanon.serving.verifier import AttestationVerifier

            AttestationVerifier(self.verifier)
        if tokens and not all(given):
            raise typer.BadParameter("JWT needs --jwks, --issuer and --audience")
        if any(given) and not tokens:
            raise typer.BadParameter("--jwks, --issuer and --audience have no effect without --join-auth JWT")

    def access(self, keys: BearerCheck, types: "Collection[Type]" = ()) -> Access:
        """The checks of requests to a service with these types. ``keys`` checks an API key."""
        checks = {AuthMode.KEY: keys}
        if self.tokens is not None:
            checks[AuthMode.JWT] = self.tokens.has
        needing = frozenset(type_.name for type_ in types if type_.credential)
        asked_later = self.verifier is not None
        enrol = AuthMode.OPEN if asked_later else self.enrol or AuthMode.KEY
        return Access(self.join, self.batch, checks, self.lists, enrol, needing)

    @cached_property
    def tokens(self) -> "AcceptedTokens | None":
        """What checks tokens, if there are any."""
        if self.jwks is None:
            return None
        from kanon.serving.tokens import AcceptedTokens

        return AcceptedTokens(self.jwks, self.issuer or "", self.audience or "")

    def enrolment(self, directory: "Directory", keys: "ApiKeys") -> "EnrolRoutes | None":
        """The routes to enrol in a directory with a type that needs credentials."""
        if not any(type_.credential for type_ in directory.types.values()):
            if self.enrol is not None or self.verifier is not None:
                raise typer.BadParameter("no type needs a credential: --enrol-auth and --enrol-verifier need one")
            return None
        from kanon.gate.enrol_routes import EnrolRoutes
        from kanon.serving.enrolment import open_credentials, refuse_other_names

        enrolling, account_key = open_credentials(directory)
        kind = self.enrol or AuthMode.KEY if self.verifier is None else "DEVICE"
        refuse_other_names(directory, f"JWT {self.issuer}" if kind == AuthMode.JWT else kind)
        name_of = self._name_of(keys, enrolling.issuer.deployment)

        def account(event: Mapping[str, Any]) -> str | None:
            name = name_of(event)
            return None if name is None else f"{kind} {name}"

        return EnrolRoutes(enrolling, account_key, account)

    def _name_of(self, keys: "ApiKeys", deployment: str) -> "Identify":
        """What names the account of an event, of its kind."""
        if self.verifier is not None:
            from kanon.gate.attesting import DeviceAccounts
            from kanon.serving.verifier import AttestationVerifier

            return DeviceAccounts(deployment, AttestationVerifier(self.verifier))
        name_of = self.tokens.subject_of if self.tokens is not None and self.enrol is AuthMode.JWT else keys.name_of
        return lambda event: name_of(event["headers"].get("authorization", "").partition(" ")[2].strip())


@contextmanager
def usable(port: int, host: str = "127.0.0.1") -> Iterator[None]:
    """Name the option if an address cannot be used."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL or isinstance(error, gaierror):
            raise typer.BadParameter(f"{host} is no address of this machine", param_hint="--host") from error
        problem = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise typer.BadParameter(
            f"port {port} {problem}: choose another, or 0 for any free one", param_hint="--port"
        ) from error


@dataclass(frozen=True)
class OfLists:
    """What the options say of lists."""

    auth: AuthMode | None
    review_steps: int | None
    days: int | None

    def check(self, types: "Collection[Type]", credentials: Credentials) -> bool:
        """Whether there is anything to list.

        Raises:
            typer.BadParameter: the options do not fit the types, or anybody could publish any text at once.
        """
        if not any(type_.listed for type_ in types):
            if any(value is not None for value in vars(self).values()):
                raise typer.BadParameter("no type is listed: --list-auth, --review-steps and --list-days need one")
            return False
        if AuthMode.OPEN in (credentials.join, credentials.lists) and not self.review_steps:
            raise typer.BadParameter(
                "with --join-auth OPEN invented clients can list any text, and with --list-auth OPEN anybody can read"
                " it: give the steps in which you can suppress it, such as --review-steps 24"
            )
        return True

    def opened(self, directory: "Directory", credentials: Credentials) -> "Lister | None":
        """The lister of a directory, if it has a listed type."""
        if not self.check(directory.types.values(), credentials):
            return None
        from kanon.serving.lists import Lister

        days = {} if self.days is None else {"days": self.days}
        return Lister(directory, self.review_steps or 0, **days)


def _reporting(directory: "Directory", asked: OfReports) -> "DirectoryReports | None":
    """The reports of a directory, if they are on."""
    if not directory.reports_on and asked == (None, None, None):
        return None
    from kanon.serving.reporting import RequestedParameters, open_reporting

    return open_reporting(directory, RequestedParameters(*asked))


@needs("serve")
def serve_directory(
    options: ServeOptions,
    period: int | None,
    types: str | None,
    credentials: Credentials,
    reports: OfReports,
    lists: OfLists,
) -> None:
    """Serve a directory until a signal ends it."""
    credentials.check()
    from kanon import clock
    from kanon.gate.types import read_types
    from kanon.serving.api_keys import ApiKeys
    from kanon.serving.directory import HOUR, Given, open_directory
    from kanon.serving.service import Running

    if not options.host:
        raise typer.BadParameter("give an address, such as 127.0.0.1", param_hint="--host")
    stop = threading.Event()
    with directory_errors(options.data), ExitStack() as opened:
        if types is not None:  # before a directory is made
            lists.check(read_types(types, period or HOUR).values(), credentials)
        directory = open_directory(options.data, Given(period=period, types=types), clock.now())
        opened.callback(directory.close)
        opened.enter_context(directory.or_taken_back())
        keys = ApiKeys(lambda: directory.control.database)
        access = credentials.access(keys.has, directory.types.values())
        reporting = _reporting(directory, reports)
        gateway, lister = options.relayed(directory), lists.opened(directory, credentials)
        enrolment = credentials.enrolment(directory, keys)
        if reporting is not None:
            opened.callback(reporting.close)
        for number in (signal.SIGINT, signal.SIGTERM):  # before anything says that it runs
            signal.signal(number, lambda *_: stop.set())
        with usable(options.port, options.host):
            running = Running(
                directory, access, options.host, options.port, options.cors, reporting, gateway, lister, enrolment
            )
        opened.pop_all()
    with closing(running):
        if _is_loopback(options.host) and sys.stderr.isatty():  # a log must not keep the token
            typer.echo(f"Console: {running.console.address(running.url)}", err=True)
        _say_who_may_call(options, credentials, any_key=bool(keys.all()))
        stop.wait()


def _say_who_may_call(options: ServeOptions, credentials: Credentials, *, any_key: bool) -> None:
    """Say on standard error what an operator must know before anybody calls."""
    if AuthMode.KEY in (credentials.join, credentials.batch, credentials.lists) and not any_key:
        typer.echo(f"No API key exists yet. Make one: {program()} operate api-key --data {options.data}", err=True)
    if credentials.join is AuthMode.OPEN:
        warn("with --join-auth OPEN anybody who reaches this port can invent clients, and so make any set true")
    if not _is_loopback(options.host):
        warn("requests and keys travel unencrypted: let a proxy that speaks HTTPS forward them")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@needs("serve")
def api_key(data: ServiceDirectory, name: "str | None", revoke: "str | None") -> None:
    """Make or revoke an API key, also beside a running service."""
    from kanon import clock
    from kanon.gate.storage.disk.control import NAME, ControlFile
    from kanon.serving.api_keys import ApiKeys

    if not (data / NAME).is_file():
        raise typer.BadParameter(f"{data} holds no deployment: run `kanon serve --data {data}` first")
    with directory_errors(data), closing(ControlFile(data)) as control:
        keys = ApiKeys(lambda: control.database)
        if revoke is not None:
            keys.revoke(revoke)
        else:
            made, key = keys.make(name, clock.now())
    if revoke is not None:
        typer.echo(f"Key {revoke} is refused from now on.")
        return
    typer.echo(f"Key {made}. It is shown only now; send it as `Authorization: Bearer ...`:", err=True)
    typer.echo(key)
