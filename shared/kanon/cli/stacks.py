"""Shared by the commands on a running stack: the options that name it, and errors of one line."""

import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from kanon.cli.directories import directory_errors
from kanon.cli.errors import CommandError

if TYPE_CHECKING:
    from kanon.operate.stacks import RunningStack

StackName = Annotated[str | None, typer.Option(help="Name of the deployed stack.")]
Region = Annotated[str | None, typer.Option(help="Region of the stack; by default the shell's.")]
AwsProfile = Annotated[
    str | None, typer.Option("--aws-profile", help="AWS credentials profile; by default the shell's.")
]
Url = Annotated[
    str | None,
    typer.Option(help="Without --stack: the URL of `kanon serve` on this machine; by default http://127.0.0.1:8000."),
]

Data = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Instead of a stack: directory of a deployment.")
]

LOCAL = "http://127.0.0.1:8000"


def find(stack: str | None, region: str | None, profile: str | None, url: str | None) -> "RunningStack":
    """The stack that the options name."""
    import boto3

    from kanon.operate.stacks import deployed_stack, local_stack

    if stack is not None:
        if url is not None:
            raise typer.BadParameter("give --stack or --url, not both")
        return deployed_stack(stack, boto3.Session(region_name=region, profile_name=profile))
    if region or profile:
        raise typer.BadParameter("--region and --aws-profile are for a deployed stack: name it with --stack")
    url = url or LOCAL
    if not _is_on_this_machine(url):
        raise typer.BadParameter("give the URL of a stack on this machine: http://127.0.0.1:PORT", param_hint="--url")
    return local_stack(url)


def _is_on_this_machine(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost") and parts.port != 0
    except ValueError:  # not a URL, or a port above 65535
        return False


@contextmanager
def stack_errors(needed: str) -> Iterator[None]:
    """End the command with one line if the stack cannot be reached or refuses a call.

    ``needed`` names the permissions of the command. It follows the message of a refused call.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from kanon.client import ApiError
    from kanon.errors import KanonError
    from kanon.operate.stacks import reason

    try:
        yield
    except (ApiError, KanonError, BotoCoreError, ClientError) as error:
        text = reason(error) if isinstance(error, BotoCoreError | ClientError) else str(error)
        refused = isinstance(error, ClientError) or isinstance(error.__cause__, ClientError)
        raise CommandError(f"{text}{needed if refused else ''}") from error


def on_stack(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes a RunningStack the options that name one."""
    return _named(command, ("stack", "region", "profile", "url"))


def on_stack_or_directory(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a command that also takes the directory of a deployment on one machine."""
    return _named(command, ("stack", "region", "profile", "url", "data"))


def _named(command: Callable[..., None], names: Collection[str]) -> Callable[..., None]:
    """The command with its own options, without its first parameter, and those with these names after them."""

    @wraps(command, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def named(
        *,
        stack: StackName = None,
        region: Region = None,
        profile: AwsProfile = None,
        url: Url = None,
        data: Data = None,
        **own: Any,
    ) -> None:
        if data is None:
            with stack_errors(": docs/guides/operate.md#kanon-operate names the permissions"):
                command(find(stack, region, profile, url), **own)
            return
        if stack or region or profile or url:
            raise typer.BadParameter("give --stack, --url or --data, one of them")
        with directory_errors(data):
            command(data, **own)

    own = list(inspect.signature(command).parameters.values())[1:]
    options = inspect.signature(named, follow_wrapped=False).parameters
    parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in (*own, *(options[name] for name in names))]
    named.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    named.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return named
