"""``kanon release``: publishes statistics of a log or table once, with a privacy guarantee for all rows of a user."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.errors import CommandError
from kanon.cli.files import Force, OutputFiles, same_file
from kanon.cli.options import DateOrder, SkipBadRows, User
from kanon.cli.screen import plain, warn, working
from kanon.created import PRIVATE

if TYPE_CHECKING:
    from kanon.release.bounding import Condition
    from kanon.release.ledger import Account, Ledger
    from kanon.release.mechanism import Mechanism
    from kanon.release.releasing import Engine, Release
    from kanon.release.spec import Spec


@contextmanager
def release_errors() -> Iterator[None]:
    """End the command with one line if its input is invalid."""
    from kanon.release.errors import ReleaseError

    try:
        yield
    except ReleaseError as error:
        raise CommandError(str(error), error.status) from error


@release_errors()
def release(
    context: typer.Context,
    group: Annotated[str, typer.Option(help="Columns that name a group, such as set or country,device.")],
    epsilon: Annotated[str, typer.Option(help="Epsilon of the whole release.")],
    delta: Annotated[str, typer.Option(help="Delta of the whole release.")],
    logs: Annotated[
        list[str] | None,
        typer.Argument(help="CSV, JSON or Parquet files, plain or gzipped.", show_default=False),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the data in the ledger.", show_default=False)] = None,
    user: User = "client",
    unit: Annotated[str, typer.Option(help="Unit of privacy: user, user-day or user-month (UTC).")] = "user",
    groups_per_user: Annotated[int, typer.Option(help="kappa: number of groups in which a user counts.")] = 1,
    floor: Annotated[int, typer.Option(help="Groups with fewer users are never released.")] = 1,
    aggregates: Annotated[
        list[str] | None,
        typer.Option(
            "--aggregate",
            help="rows:MOST, sum:COLUMN:LOW:HIGH, sum:COLUMN:auto, mean, var, stddev, min, max (:COLUMN:LOW:HIGH),"
            " quantile:COLUMN:LOW:HIGH:0.5,0.9, distinct:COLUMN or all-users; may be repeated.",
        ),
    ] = None,
    weight: Annotated[
        str | None, typer.Option(help="Shares of epsilon for the count and each aggregate, such as 2,1,1.")
    ] = None,
    values_per_group: Annotated[int, typer.Option(help="Number of values of a user that count in a group.")] = 1,
    scale: Annotated[
        int | None,
        typer.Option(help="Decimal places of the values, rounded half to even. By default values must be whole."),
    ] = None,
    cells: Annotated[int, typer.Option(help="Cells of the grid for quantiles.")] = 4096,
    noise: Annotated[str, typer.Option(help="Noise of the count: auto, laplace or gaussian.")] = "auto",
    only: Annotated[str | None, typer.Option(help="groups: release only the names of the groups.")] = None,
    groups: Annotated[
        Path | None,
        typer.Option(help="File of the public groups, read as a log; it has the columns of --group. All are released."),
    ] = None,
    period: Annotated[
        str | None,
        typer.Option("--days", help="Use only rows of these days (UTC): 2026-01, or 2026-01-05..2026-01-09."),
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="Use only rows with column=text or column!=text; may be repeated.")
    ] = None,
    time: Annotated[str, typer.Option(help="Column of the time (Unix seconds or ISO 8601).")] = "time",
    dates: DateOrder = None,
    skip_bad_rows: SkipBadRows = False,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the release; default: a digest of the options. A new name costs again."),
    ] = None,
    ledger: Annotated[str, typer.Option(help="Directory of the ledger, or dynamodb:TABLE.")] = "kanon-ledger",
    out: Annotated[Path, typer.Option(help="Table to write: .csv or .parquet; .json and .png go beside it.")] = Path(
        "released.csv"
    ),
    engine: Annotated[
        str, typer.Option(help="duckdb: this machine. spark: the Spark session of the environment.")
    ] = "duckdb",
    memory: Annotated[str, typer.Option(help="Memory of DuckDB; it stores the rest on disk.")] = "1GiB",
    explain: Annotated[
        str | None, typer.Option(help="Print the SQL of the bounding for duckdb, spark or athena. Release nothing.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the expected accuracy, without reading data, and stop.")
    ] = False,
    operator_report: Annotated[
        Path | None, typer.Option(help="Write exact numbers of rows, users and groups. NOT private: do not publish.")
    ] = None,
    force: Force = False,
) -> None:
    """Publish counts and other statistics per group once, with a privacy guarantee for all rows of a user.

    Exit status 3: no automatic bounds; 4: over budget; 5: the input cannot be read or has changed; 6: the ledger is
    damaged. Running the same command again costs nothing and writes the same files.

    Example: kanon release joins.csv --dataset joins --group set --epsilon 1 --delta 1e-6
    """
    from kanon.release.accounting import Period
    from kanon.release.mechanism import Mechanism
    from kanon.release.spec import Spec

    columns = tuple(part.strip() for part in group.split(","))
    if only not in (None, "groups"):
        raise CommandError("--only must be: groups")
    if groups is not None and any(same_file(groups, Path(log)) for log in logs or ()):
        raise CommandError("--groups is the log: its groups are not public, and all would be named. Leave it out")
    spec = Spec(
        groups=columns, epsilon=exact(epsilon, "--epsilon"), delta=exact(delta, "--delta"), user=user,
        unit=unit,  # type: ignore[arg-type]  # Spec refuses other texts
        groups_per_user=groups_per_user, floor=floor, aggregates=tuple(aggregates or ()),
        weights=_weights(weight), values_per_group=values_per_group, scale=scale, cells=cells,
        noise=noise,  # type: ignore[arg-type]  # as above
        only_groups=only is not None, public_groups=_public(groups, columns) if groups else None,
        period=None if period is None else Period.read(period), where=tuple(map(_condition, where or ())), time=time,
        dates=dates,  # type: ignore[arg-type]  # as above
        skip_bad_rows=skip_bad_rows,
    )  # fmt: skip
    if explain is not None and dry_run:
        raise CommandError("give --explain or --dry-run, not both")
    if explain is not None:
        _explain(spec, explain)
    elif dry_run:
        _dry_run(Mechanism(spec))
    elif not logs:
        raise CommandError("give at least one file")
    elif dataset is None:
        raise CommandError("--dataset names the data in the ledger: give it")
    else:
        import matplotlib as mpl  # noqa: F401, fail now and not after the release

        outputs = OutputFiles(context, force=force)
        _check(out, operator_report, outputs)
        if operator_report is not None:
            _refuse_pipes(logs)
        _release(logs, spec, ledger, dataset, name, out, _engine(engine, memory), operator_report, outputs)


def _check(out: Path, operator_file: Path | None, outputs: OutputFiles) -> None:
    if out.suffix not in (".csv", ".parquet"):
        raise CommandError("--out must end with .csv or .parquet")
    for path in (out, *_beside(out)):
        outputs.check(path, "--out")
    outputs.check(operator_file, "--operator-report")


def _refuse_pipes(logs: Sequence[str]) -> None:
    from kanon.joinlog import STANDARD_INPUT

    for log in logs:
        if log == STANDARD_INPUT or Path(log).is_fifo():
            raise CommandError("--operator-report reads the log again, a pipe is read once: give the name of a file")


def _beside(out: Path) -> tuple[Path, Path]:
    """The description and the picture of a table."""
    return out.with_suffix(".json"), out.with_suffix(".png")


def _release(
    logs: Sequence[str], spec: "Spec", place: str, dataset: str, name: str | None, out: Path, engine: "Engine",
    operator_file: Path | None, outputs: OutputFiles,
) -> None:  # fmt: skip
    from kanon.release.ledger import Ledger
    from kanon.release.output import json_bytes
    from kanon.release.releasing import operator_report
    from kanon.release.releasing import release as released

    ledger = Ledger.at(place)
    with working("reading the log and adding up"):
        made = released(logs, spec, ledger, dataset=dataset, name=name, engine=engine)
    with _after_charging("--out"):
        _write(made, out, outputs)
    if operator_file is not None:
        with working("counting for the operator's report"):
            report = operator_report(logs, spec, ledger, dataset=dataset, engine=engine)
        with _after_charging("--operator-report"):
            outputs.write({operator_file: json_bytes(report)}, PRIVATE)
    _say(made, ledger)


@contextmanager
def _after_charging(option: str) -> Iterator[None]:
    """Say of a file that cannot be written that the release is not lost."""
    try:
        yield
    except CommandError as error:
        raise CommandError(
            f"{error.message}. The release is charged: running it again with another {option} costs nothing"
        ) from error


def _engine(name: str, memory: str) -> "Engine":
    if name == "spark":
        from kanon.release.engines.spark import Spark

        return Spark()
    if name != "duckdb":
        raise CommandError("--engine must be duckdb or spark")
    from kanon.release.engines.duckdb import DuckDB

    return DuckDB(memory)


def _write(made: "Release", out: Path, outputs: OutputFiles) -> None:
    from kanon.release.output import csv_bytes, json_bytes, parquet_bytes, picture

    table = (csv_bytes if out.suffix == ".csv" else parquet_bytes)(made.released, made.mechanism.spec.groups)
    description, drawing = _beside(out)
    contents = {out: table, description: json_bytes(made.described() | {"table_sha256": sha256(table).hexdigest()})}
    contents[drawing] = picture(made.released, made.mechanism)
    outputs.write(contents)
    typer.echo(f"Wrote {', '.join(map(str, contents))}.")


def _say(made: "Release", ledger: "Ledger") -> None:
    from kanon.noise.bound import Bound
    from kanon.release.output import counted, protects

    spec = made.mechanism.spec
    typer.echo(f"Guarantee: {made.guarantee} for {protects(made.mechanism)}.")
    typer.echo(f"Counts: {counted(spec, made.released)}.")
    if spec.drops_users and not spec.only_groups and made.released.left_out is None:
        typer.echo(
            "--aggregate all-users releases how many more at most; a higher --groups-per-user counts more of them."
        )
    if made.new:
        typer.echo(f"Release {made.id} is charged {Bound(spec.epsilon, spec.delta)}.")
    else:
        typer.echo(f"Release {made.id} was paid for before: this run costs nothing.")
    if not made.released.rows:
        typer.echo(
            f"No group is in the table: a group is surely released from {made.mechanism.rule.sure_from:,} users on,"
            " and the options decide which rows count. --operator-report has exact numbers, for you alone."
        )
    accounts = ledger.accounts(made.dataset)
    for account in accounts:
        typer.echo(f"Dataset {spent(account)}.")
    own = next(account for account in accounts if account.unit == spec.unit)
    if own.budget is None:
        option = plain(shlex.join(["--dataset", made.dataset, "--unit", spec.unit]))
        typer.echo(
            f"Nothing limits what may be spent on it. Set a budget in this ledger: kanon ledger add --budget {option}"
            " --epsilon E --delta D"
        )
    warn(*own.spent.cautions(made.fewest_users), *_other_columns(spec, own))


def _other_columns(spec: "Spec", account: "Account") -> Iterator[str]:
    """A warning if the unit of a release is made of other columns than that of the dataset's first one."""
    used = (spec.user, spec.time) if spec.bounding.needs_time else (spec.user,)
    first = account.columns[: len(used)]
    if any(one not in (column, None) for one, column in zip(first, used, strict=True)):
        yield (
            f"a {spec.unit} by {' and '.join(used)} is another unit than one by {' and '.join(map(str, first))}, the"
            " columns of the dataset's first release: the costs add up, and protect only what is one unit by both"
        )


def spent(account: "Account") -> str:
    """The spends and the budget of a dataset and unit, in words."""
    budget = f" of {account.budget}" if account.budget else ", no budget: no limit"
    return plain(f"{account.dataset}, unit {account.unit}: {account.spent} spent{budget}")


def exact(text: str, option: str) -> Fraction:
    """A decimal read exactly, not as a float."""
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise CommandError(f"{option} must be a number such as 0.5 or 1e-6, not {text!r}") from error


def _weights(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise CommandError("--weight must be whole numbers such as 2,1,1") from error


def _condition(text: str) -> "Condition":
    from kanon.release.bounding import Condition

    column, sign, wanted = text.partition("=")
    if not sign or not column.rstrip("!"):
        raise CommandError("--where must be column=text or column!=text")
    return Condition(column.removesuffix("!"), not column.endswith("!"), wanted)


def _public(path: Path, columns: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The groups listed in a file, which is read as a log is."""
    from kanon.joinlog import LogError, LogReading
    from kanon.joinlog.batches import read_tables
    from kanon.joinlog.rows import OR_SKIP
    from kanon.joinlog.wanted import Column, Wanted

    wanted = Wanted(tuple(Column(name, "text") for name in columns))
    try:
        tables = list(read_tables(path, wanted, LogReading()))
    except LogError as error:
        raise CommandError(f"--groups: {str(error).removesuffix(OR_SKIP)}") from error
    listed = [group for table in tables for group in zip(*(one.to_pylist() for one in table.columns), strict=True)]
    if not listed:
        raise CommandError(f"--groups: {path} names no group: write one per line")
    return tuple(listed)


NOT_PRIVATE = "-- NOT PRIVATE: this query gives exact counts, without noise. Do not publish them."


def _explain(spec: "Spec", engine: str) -> None:
    from kanon.release.engines import sql

    if engine not in sql.DIALECTS:
        raise CommandError(f"--explain must be one of {', '.join(sql.DIALECTS)}")
    typer.echo(
        "-- source_table: your rows, checked; SAMPLING_SECRET: secret letters and digits of your choice. Columns:"
    )
    for name, column in spec.bounding.columns.items():
        kind = {"number": f"integer, the value * 10^{spec.places}", "day": "UTC days since 1970-01-01"}.get(column.kind)
        typer.echo(f"--   {name}: {column.name}, {kind or 'text, never empty'}")
    for text in sql.plan(spec.bounding, sql.DIALECTS[engine]):
        typer.echo(f"{NOT_PRIVATE}\n{text};")


def _dry_run(mechanism: "Mechanism") -> None:
    """Print the guarantee and the accuracy, which follow from public parameters alone."""
    from kanon.noise.bound import Bound
    from kanon.release.output import advice, utility
    from kanon.release.releasing import refuse_delta

    spec = mechanism.spec
    refuse_delta(spec)
    warn(*Bound(spec.epsilon, spec.delta).cautions(spec.floor))
    typer.echo(f"Guarantee: {mechanism.claim}. Nothing is read, nothing is spent.")
    for line in utility(mechanism):
        typer.echo(line)
    typer.echo("The count with other values of --groups-per-user:")
    for line in advice(mechanism):
        typer.echo(line)
