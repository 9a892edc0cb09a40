"""``kanon listed``: the values of a listed type that the crowd shares, now or since a day."""

import csv
import io
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kanon.cli.errors import CommandError, one_line
from kanon.cli.options import refuse_unused
from kanon.cli.screen import cell, new_table, plain, screen, show_json
from kanon.cli.stacks import LOCAL, AwsProfile, find, stack_errors
from kanon.client.auth import Auth, Bearer
from kanon.http import encoding

ValueRow = dict[str, Any]


class Format(StrEnum):
    """How values are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def listed(
    context: typer.Context,
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="A listed type.", show_default=False)],
    url: Annotated[str | None, typer.Option(help=f"Address of the service, by default {LOCAL}.")] = None,
    key: Annotated[
        str | None, typer.Option(envvar="KANON_API_KEY", help="API key or token; better in the environment.")
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="Region of the stack. With --url the request is signed, as ListAuth=IAM needs.")
    ] = None,
    profile: AwsProfile = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Read the history in this directory of `kanon serve --data`.")
    ] = None,
    stack: Annotated[str | None, typer.Option(help="Read the history in the bucket of this deployed stack.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="DAY", help="With --data or --stack: every value listed since this day (2026-07-31)."),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How to print them.")] = Format.TABLE,
) -> None:
    """Print the values that the crowd shares. With --since, all that were listed since a day, with first and last step.

    In CSV, a value that a program for tables would execute has an apostrophe before it.

    Example: kanon listed terms --format csv
    """
    if data is None and stack is None and since is not None:
        raise typer.BadParameter("the history is with the service: name it with --data or --stack")
    if sum(place is not None for place in (data, stack, url)) > 1:
        raise typer.BadParameter("give --data, --stack or --url, not both")
    if region is None and profile is not None and stack is None:
        raise typer.BadParameter("credentials sign a request to a stack: give its --region too")
    if region is not None and stack is None and (url is None or data is not None):
        raise typer.BadParameter("a signed request goes to a stack: give its --url, without --data")
    if data is not None or stack is not None or region is not None:
        refuse_unused(context, {"key"}, "here: a directory, a bucket and a signed request need none")
    if form is Format.PARQUET and sys.stdout.isatty():
        raise typer.BadParameter("Parquet is for a file or a pipe: add > values.parquet", param_hint="--format")
    if data is not None:
        rows = _history(type_name, data, since)
    elif stack is not None:
        rows = _history_of_stack(type_name, (stack, region, profile), since)
    else:
        auth = _signature(region, profile) if region else key and Bearer(key)
        rows = _now(type_name, url or LOCAL, auth or None)
    _show(rows, ("value", "since") if since is None else ("value", "first", "last"), form)


def _signature(region: str, profile: str | None) -> Auth:
    """Signs with the credentials of the AWS configuration."""
    import boto3
    from botocore.exceptions import BotoCoreError

    from kanon.client.signing import SigV4

    with one_line(BotoCoreError):
        credentials = boto3.Session(profile_name=profile).get_credentials()
    if credentials is None:
        raise CommandError("no AWS credentials were found: sign in, or give --aws-profile")
    return SigV4(credentials, region)


def _now(type_name: str, url: str, auth: Auth | None) -> list[ValueRow]:
    from kanon.client import Client

    with one_line(ValueError), Client(url, auth=auth) as client:
        found = client.released(type_name)
    if found.step is None:
        typer.echo("No list has been published yet.", err=True)
    return [each._asdict() for each in sorted(found.values)]


def _history(type_name: str, data: Path, since: str | None) -> list[ValueRow]:
    """The rows of the newest list of the history, or of all lists since a day."""
    from kanon.serving.directory import existing
    from kanon.serving.lists import history_of

    folder = history_of(existing(data), type_name)
    steps = [int(each.name.partition("=")[2]) for each in folder.glob("date=*/step=*")]
    if not steps:
        known = ", ".join(sorted({each.parents[2].name for each in folder.parent.glob("*/*/*/*.parquet")})) or "none"
        raise CommandError(f"{data} has no lists of type {type_name!r}: types with lists: {known}")
    from pyarrow import compute, dataset

    lists = dataset.dataset(folder, partitioning="hive")
    if since is not None:
        found = lists.to_table(filter=compute.field("date") >= _day(since))
        grouped = found.group_by("value").aggregate([("step", "min"), ("step", "max")]).sort_by("value")
        return list(grouped.rename_columns({"step_min": "first", "step_max": "last"}).to_pylist())
    table = lists.to_table(["value", "since"], filter=compute.field("step") == max(steps))
    return list(table.to_pylist())


def _history_of_stack(type_name: str, named: tuple[str, str | None, str | None], since: str | None) -> list[ValueRow]:
    """The same of the bucket of a stack, which is read list by list."""
    first = None if since is None else _day(since)
    with stack_errors(": it needs those of `kanon doctor`, and s3:ListBucket and GetObject on the bucket of lists"):
        from kanon.gate.lists import day
        from kanon.gate.storage.aws.lists import ListObjects
        from kanon.operate.unlisting import check_listed

        running = find(*named, None)
        check_listed(running, type_name)
        objects = ListObjects(running.client("s3"), running.list_bucket, running.query.period)
        steps = objects.steps_of_history(type_name)
        if not steps:
            raise CommandError(
                f"{named[0]} has no list of type {type_name!r}: lists begin after the first tick, and stay ListDays"
            )
        if first is None:
            return [each._asdict() for step in steps[-1:] for each in objects.history(type_name, step)]
        seen: dict[str, ValueRow] = {}
        for step in (step for step in steps if day(step * objects.period) >= first):
            for each in objects.history(type_name, step):
                seen.setdefault(each.value, {"value": each.value, "first": step})["last"] = step
    return [seen[value] for value in sorted(seen)]


def _day(text: str) -> str:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).strftime("%Y-%m-%d")
    except ValueError:
        raise typer.BadParameter("give a day as 2026-07-31", param_hint="--since") from None


def _show(rows: list[ValueRow], columns: Sequence[str], form: Format) -> None:
    match form:
        case Format.JSON:
            show_json(rows)
        case Format.CSV:
            if sys.stdout.isatty():
                rows = [{**row, "value": plain(row["value"])} for row in rows]
            typer.echo(_as_csv(rows, columns), nl=False)
        case Format.PARQUET:
            _write_parquet(rows, columns)
        case Format.TABLE:
            table = new_table(*columns, numbers=columns[1:])
            for row in rows:
                table.add_row(*(cell(str(row[column])) for column in columns))
            screen().print(table)
            typer.echo(f"{len(rows):,} values", err=True)


def _as_csv(rows: list[ValueRow], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([encoding.cell(row["value"]), *(row[name] for name in columns[1:])] for row in rows)
    return text.getvalue()


def _write_parquet(rows: list[ValueRow], columns: Sequence[str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = [pa.string(), *(pa.int64() for _ in columns[1:])]
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(zip(columns, kinds, strict=True))))
    buffer = pa.BufferOutputStream()
    parquet.write_table(table, buffer, compression="zstd")
    sys.stdout.buffer.write(buffer.getvalue().to_pybytes())
