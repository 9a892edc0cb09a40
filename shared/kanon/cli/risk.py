"""``kanon risk``: what a log gives away, before anything of it is collected or published."""

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from kanon.risk.uniqueness import Report

risk = typer.Typer(help="Say what a log gives away before anything of it is collected or published.", no_args_is_help=True)

Log = Annotated[Path, typer.Argument(help="CSV (.csv, .csv.gz) or Parquet file with a header.", show_default=False)]
User = Annotated[str, typer.Option(help="Column that names the owner of a row.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def fail(message: str) -> NoReturn:
    """One line, exit code 2."""
    typer.echo(f"kanon risk: {message}", err=True)
    raise typer.Exit(2)


def _one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turn bad input, and a library that is not installed, into one line that says what to change."""

    @wraps(command)
    def guarded(*arguments: Any, **options: Any) -> None:
        from kanon.risk.errors import RiskError

        try:
            command(*arguments, **options)
        except RiskError as error:
            fail(str(error))
        except ModuleNotFoundError as error:
            extra = {"pyarrow": "release", "duckdb": "release", "matplotlib": "local"}.get(str(error.name).split(".")[0])
            if extra is None:
                raise
            fail(f"{error.name} is not installed: run pip install 'kanon[{extra}]'")

    return guarded


@risk.command()
@_one_line_errors
def uniqueness(
    log: Log,
    value: Annotated[str, typer.Option(help="Value column.")] = "set",
    columns: Annotated[
        str | None,
        typer.Option(help="Several at once, + joins columns: set,set+day. day, hour, month come from time (UTC)."),
    ] = None,
    user: User = "client",
    k: Annotated[list[int] | None, typer.Option(min=2, max=200, help="Thresholds to show; may be repeated.")] = None,
    key: Annotated[Path | None, typer.Option(help="Key file; made if there is none. Default: a key of this run.")] = None,
    size: Annotated[int, typer.Option(min=16, max=1 << 20, help="Values kept in a sketch.")] = 2_048,
    profile: Annotated[str, typer.Option(help="Noise of the service: published, balanced or sharp.")] = "published",
    window: Annotated[int, typer.Option(min=2, max=65_535, help="Window of the service, steps.")] = 720,
    out: Annotated[Path | None, typer.Option(help="Write the sketch (.khll) to merge or join it later.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the curve as a PNG.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML page.")] = None,
    as_json: Json = False,
) -> None:
    """How identifying are the values of a column, and what would a threshold k cost?"""
    from kanon.gate.mechanism.parameters import InvalidParametersError
    from kanon.risk.hashing import Key
    from kanon.risk.sketching import sketches
    from kanon.risk.uniqueness import report

    asked = _columns(columns) if columns else [(value,)]
    if out is not None and len(asked) > 1:
        fail("--out takes the sketch of one value: name one with --value or --columns")
    made = sketches(log, asked, user, key=Key.kept_in(key) if key else Key.fresh(), size=size)
    try:
        reports = [report(one, user, profile, window) for one in made]
    except InvalidParametersError as error:
        fail(str(error))
    if out is not None:
        _save(made[0].sketch, out)
    if as_json:
        typer.echo(json.dumps(_as_json(reports), indent=2))


def _columns(text: str) -> list[tuple[str, ...]]:
    asked = [tuple(part.strip() for part in one.split("+")) for one in text.split(",")]
    for one in asked:
        if not all(one) or len(set(one)) < len(one):
            fail(f"--columns must look like set,set+day, not {text!r}")
    return asked


def _as_json(reports: "list[Report]") -> dict[str, Any]:
    if len(reports) == 1:
        return reports[0].as_json()
    return {
        "dangerous": [one.name for one in reports if one.verdict == "dangerous"],
        "columns": [one.as_json() for one in reports],
    }


def _save(sketch: Any, path: Path) -> None:
    from kanon.risk.sketch_file import WARNING, save

    save(sketch, path)
    typer.echo(f"warning: {path} {WARNING}", err=True)
