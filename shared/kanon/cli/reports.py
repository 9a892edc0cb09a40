"""``kanon reports``: noisy histograms of encrypted contributions, on this machine."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TypeVar

import typer

from kanon.cli.errors import CommandError, needs
from kanon.cli.files import Force, OutputFiles
from kanon.cli.options import Json, StepLength, own_types, refuse_unused
from kanon.cli.reports_demo import demo
from kanon.cli.reports_demo_service import demo_service
from kanon.cli.screen import show_json, working
from kanon.created import PRIVATE, SHARED

if TYPE_CHECKING:
    from kanon.reports.aggregate import Job, JobOutcome
    from kanon.reports.avro import Report
    from kanon.reports.shared_info import Rules

ORIGIN = "https://report.test"
"""The reporting origin of simulated reports."""

app = typer.Typer(help="Noisy histograms of encrypted reports, on this machine.", no_args_is_help=True)

Epsilon = Annotated[str, typer.Option(help="Epsilon, up to 64, with at most 3 decimals.")]
Delta = Annotated[str, typer.Option(help="Delta of discovery, from 1e-12 to 0.001.")]

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def _job_errors() -> Iterator[None]:
    """End the command with one line if its job ends on an invalid option (status 2) or an invalid input (1)."""
    from kanon.reports.errors import JobError

    try:
        yield
    except JobError as error:
        raise CommandError(f"{error.code}: {error}", 2 if error.code == "INVALID_JOB" else 1) from error


def command(function: Callable[P, T]) -> Callable[P, T]:
    """Add a command to ``kanon reports``."""
    return app.command()(_job_errors()(function))


for function in (demo, demo_service):
    app.command()(needs("local")(_job_errors()(function)))


@command
def aggregate(
    context: typer.Context,
    reports: Annotated[list[Path], typer.Argument(help="Files of reports (Avro), or folders of them.")],
    keys: Annotated[Path, typer.Option(help="File of private keys, from `kanon reports keys`.")],
    output: Annotated[Path, typer.Option("--out", help="Name of the summary.")] = Path("summary.avro"),
    domain: Annotated[list[Path] | None, typer.Option(help="File of declared keys (Avro); may be repeated.")] = None,
    discover: Annotated[
        bool, typer.Option("--discover", help="Discover the keys: release those above the threshold.")
    ] = False,
    epsilon: Epsilon = "10",
    delta: Annotated[str | None, typer.Option(help="Delta of discovery, from 1e-12 to 0.001. Default: 1e-8.")] = None,
    threshold_rule: Annotated[str, typer.Option("--threshold", help="Rule of discovery: sharp or paper.")] = "sharp",
    sparsity: Annotated[int, typer.Option(help="Number of keys of one unit, for --threshold paper.")] = 1,
    filtering_ids: Annotated[str, typer.Option(help="Filtering ids to count, with commas.")] = "0",
    attribution_report_to: Annotated[str | None, typer.Option(help="Count only reports of this origin.")] = None,
    reporting_site: Annotated[str | None, typer.Option(help="Count only reports of this site.")] = None,
    error_threshold: Annotated[str, typer.Option(help="Largest percentage of reports in error.")] = "10",
    processes: Annotated[int, typer.Option(min=1, help="Processes that read files, one file at a time.")] = 1,
    any_age: Annotated[bool, typer.Option("--any-age", help="Accept reports older than 90 days.")] = False,
    no_contribution_bound: Annotated[
        bool,
        typer.Option(
            "--no-contribution-bound", help="Accept values of any size. Without the bound there is no guarantee."
        ),
    ] = False,
    no_noise: Annotated[bool, typer.Option("--no-noise", help="Write exact sums, for tests. Needs --debug.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Write exact sums and noise to a second file.")] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Add up encrypted reports by key and write a noisy summary.

    Exit status 1: an input is invalid or an output cannot be written.

    Example: kanon reports aggregate reports.avro --domain domain.avro --keys private-keys.json --epsilon 2
    """
    from kanon.reports.aggregate import Job, NoiseSecrets, read_inputs, write
    from kanon.reports.aggregate import aggregate as run
    from kanon.reports.job import PrivacyParameters, decimal
    from kanon.reports.payload import private_keys
    from kanon.reports.shared_info import Rules

    if bool(domain) == discover:
        raise typer.BadParameter("say --domain or --discover, one of them: it decides which keys are released")
    if delta is not None and not discover:
        raise typer.BadParameter("declared keys need no delta: leave --delta out")
    if no_noise and not debug:
        raise typer.BadParameter("--no-noise writes exact sums and is for tests: say --debug as well")
    if threshold_rule not in {"sharp", "paper"}:
        raise typer.BadParameter("--threshold is sharp or paper")
    numbers = _filtering_ids(filtering_ids)
    parameters = PrivacyParameters(
        "discover" if discover else "declared",
        decimal(epsilon, "--epsilon"),
        decimal(delta or "1e-8", "--delta") if discover else Fraction(0),
        rule="paper" if threshold_rule == "paper" else "sharp",
        sparsity=sparsity,
    )
    outputs = _outputs(context, force, {"--out": output})
    rules = Rules(
        int(time.time()),
        private_keys(_key_document(keys)),
        _origin(attribution_report_to),
        _origin(reporting_site, site=True),
        check_age=not any_age,
        contribution_bound=None if no_contribution_bound else parameters.contribution_bound,
    )
    places = read_inputs(reports)
    declared = read_inputs(domain) if domain else None
    job = Job(places, declared, parameters, rules, numbers, decimal(error_threshold, "--error-threshold"))
    with working("opening and adding up the reports"):
        outcome = run(job, NoiseSecrets.draw(), processes, undeclared=debug)
    outcome = outcome.without_noise() if no_noise else outcome
    written = write(outcome, output, debug=debug, may_replace=outputs.may_replace)
    _show(job, outcome, written, _warnings(rules, no_noise=no_noise, debug=debug), as_json=as_json)


@command
def simulate(
    context: typer.Context,
    events: Annotated[Path, typer.Argument(help="CSV with a header: time, client, key, ... (see --client).")],
    keys: Annotated[Path, typer.Option(help="Public keys, from `kanon reports keys`.")] = Path("public-keys.json"),
    output: Annotated[Path, typer.Option("--out", help="File of reports.")] = Path("reports.avro"),
    client: Annotated[
        str,
        typer.Option(
            help="windows: columns time, client, key [, value]. attribution: also event (source or trigger),"
            " destination."
        ),
    ] = "windows",
    window: Annotated[int, typer.Option("--window-seconds", min=1, help="Length of a window, in seconds.")] = 600,
    bound: Annotated[int, typer.Option(min=1, max=65_536, help="Largest contribution of one unit.")] = 65_536,
    force: Force = False,
) -> None:
    """Simulate clients that turn a table of events into encrypted reports.

    Example: kanon reports simulate events.csv --keys public-keys.json
    """
    from kanon.reports.avro import write_reports
    from kanon.reports.clients import simulation
    from kanon.reports.clients.devices import Attribution, Windows
    from kanon.reports.clients.encrypt import encrypt
    from kanon.reports.payload import public_keys

    if client not in {"windows", "attribution"}:
        raise typer.BadParameter("--client must be windows or attribution")
    outputs = _outputs(context, force, {"--out": output})
    encrypt_to = public_keys(_key_document(keys))
    if client == "windows":
        table = simulation.read_events(events, simulation.WINDOW_COLUMNS)
        made = simulation.reports_of(table, Windows(ORIGIN, window * 1000, bound), ORIGIN)
        unit = f"one client in one window of {window:,} seconds"
    else:
        table = simulation.read_events(events, simulation.ATTRIBUTION_COLUMNS)
        made = simulation.reports_of(table, Attribution(bound), ORIGIN)
        unit = "one source"
    sent: Counter[bool] = Counter()

    def sealed() -> Iterator["Report"]:
        for report in made:
            sent[report.is_null] += 1
            yield encrypt(report, encrypt_to)

    with outputs.created() as create, create(output, SHARED) as file, working("encrypting reports"):
        write_reports(file, sealed())
    typer.echo(f"{len(table):,} events, {sent.total():,} reports, {sent[True]:,} of them null.")
    typer.echo(f"Written: {output}")
    typer.echo(f"Unit of privacy: {unit}. Its reports carry at most {bound:,} in all.")


@command
def respond(
    context: typer.Context,
    events: Annotated[
        Path, typer.Argument(help="CSV with a header: time, client, event (source or trigger), destination, key.")
    ],
    output: Annotated[Path, typer.Option("--out", help="File of responses (JSON).")] = Path("responses.json"),
    epsilon: Annotated[str, typer.Option(help="Epsilon of one source, up to 14.")] = "1",
    data: Annotated[int, typer.Option(min=1, max=32, help="The key of a trigger is from 0 to this number - 1.")] = 2,
    ends: Annotated[
        str, typer.Option(help="Ends of the report windows, in seconds after the source, with commas.")
    ] = "172800,604800",
    most: Annotated[int, typer.Option(min=1, max=20, help="Largest number of reports of one source.")] = 1,
    force: Force = False,
) -> None:
    """Write the randomised response of every source: event-level reports that need no encryption.

    Publish one file of the same events. Each run draws again, and the epsilons add up.

    Example: kanon reports respond events.csv --epsilon 2 --data 8
    """
    from kanon.reports.clients.events import information_gain
    from kanon.reports.clients.simulation import (
        ATTRIBUTION_COLUMNS,
        ResponseParameters,
        document,
        read_events,
        responses,
    )
    from kanon.reports.job import decimal

    if not all(part.isascii() and part.isdecimal() and len(part) < 12 for part in ends.split(",")):
        raise typer.BadParameter("--ends must be whole seconds with commas, such as 172800,604800")
    reporting = ResponseParameters(decimal(epsilon, "--epsilon"), data, tuple(map(int, ends.split(","))), most)
    outputs = _outputs(context, force, {"--out": output})
    if output.is_file() and not force:
        raise typer.BadParameter(
            f"{output} exists already, and a second draw costs epsilon again: choose another name, or --force"
        )
    told = responses(read_events(events, ATTRIBUTION_COLUMNS), reporting)
    outputs.write({output: document(reporting, told)})
    response = reporting.response
    gain = information_gain(response.outputs.count, float(reporting.epsilon))
    typer.echo(f"{len(told):,} sources, one response each. Written: {output}")
    typer.echo(f"{response.outputs.count:,} outputs; the true one is kept with probability {float(response.keep):.6f}.")
    typer.echo(f"Unit of privacy: one source. Its response is {epsilon}-DP and tells at most {gain:.2f} bits.")
    typer.echo("Publish one file of these events: each run draws again, and the epsilons add up.")


@command
def estimate(
    file: Annotated[Path, typer.Argument(help="File of responses, from `kanon reports respond`.")],
    as_json: Json = False,
) -> None:
    """Estimate the true numbers of reports from randomised responses, with their standard errors.

    Exit status 2: the file cannot be read.

    Example: kanon reports estimate responses.json
    """
    from kanon.reports.clients.simulation import EventsError, read_responses

    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EventsError(f"{file} cannot be read: write it with `kanon reports respond`") from error
    reporting, told = read_responses(text)
    found = [
        {"datum": d, "window_end": end, "reports": float(one.reports), "standard_error": one.standard_error}
        for d, row in enumerate(reporting.response.estimates(told))
        for end, one in zip(reporting.windows, row, strict=True)
    ]
    if as_json:
        show_json({"sources": len(told), "epsilon": float(reporting.epsilon), "estimates": found})
        return
    typer.echo(
        f"{len(told):,} sources, epsilon {float(reporting.epsilon):g}. Estimates have no bias and may be negative."
    )
    typer.echo(f"{'datum':>5}  {'window end (s)':>14}  {'reports':>12}  {'standard error':>14}")
    for one in found:
        typer.echo("{datum:>5}  {window_end:>14,}  {reports:>12,.1f}  {standard_error:>14,.1f}".format(**one))


@command
def domain(
    context: typer.Context,
    keys: Annotated[
        Path, typer.Argument(help="Text with one key per line, as in the column `key` of `simulate`; - for stdin.")
    ],
    output: Annotated[Path, typer.Option("--out", help="File of declared keys.")] = Path("domain.avro"),
    force: Force = False,
) -> None:
    """Write the declared keys of a job, from a list made before any report is read.

    Example: kanon reports domain keys.txt --out domain.avro
    """
    import numpy as np

    from kanon.reports.avro import write_domain
    from kanon.reports.clients.simulation import read_keys

    outputs = _outputs(context, force, {"--out": output})
    try:
        text = typer.get_binary_stream("stdin").read() if str(keys) == "-" else keys.read_bytes()
        declared = read_keys(text.decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{keys} cannot be read: give a text file in UTF-8") from error
    array = np.frombuffer(b"".join(key.to_bytes(16, "big") for key in declared), "S16")
    with outputs.created() as create, create(output, SHARED) as file:
        write_domain(file, array)
    typer.echo(f"{len(declared):,} declared keys. Written: {output}")


@command
def decode(
    file: Annotated[Path, typer.Argument(help="Reports, domain, summary or debug summary (Avro).")],
    keys: Annotated[Path | None, typer.Option(help="File of private keys, to decrypt reports.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=10**9, help="Largest number of lines.")] = None,
) -> None:
    """Print the lines of a file as JSON; with private keys, also decrypt its reports.

    Exit status 1: the file cannot be read.

    Example: kanon reports decode summary.avro --limit 10
    """
    from itertools import islice

    from kanon.reports.aggregate import lines
    from kanon.reports.payload import private_keys

    opening = private_keys(_key_document(keys)) if keys else None
    for line in islice(lines(file, opening), limit):
        typer.echo(json.dumps(line, ensure_ascii=False))


@command
def keys(
    context: typer.Context,
    private: Annotated[Path, typer.Option(help="File for the private keys.")] = Path("private-keys.json"),
    public: Annotated[Path, typer.Option(help="File for the public keys, for clients.")] = Path("public-keys.json"),
    force: Force = False,
) -> None:
    """Make a key pair. With the private key one can read every report.

    Example: kanon reports keys --private private-keys.json --public public-keys.json
    """
    import uuid

    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from kanon.reports.payload import private_document, public_document

    outputs = _outputs(context, force, {"--private": private, "--public": public})
    made = {str(uuid.uuid4()): X25519PrivateKey.generate()}
    files = (private, PRIVATE, private_document(made)), (public, SHARED, public_document(made))
    with outputs.created() as create:
        for path, access, document in files:
            with create(path, access) as file:
                file.write(document.encode() + b"\n")
    typer.echo(f"Private keys: {private} (keep them secret). Public keys: {public} (give them to clients).")


@command
def threshold(
    epsilon: Epsilon = "10",
    delta: Delta = "1e-8",
    sparsity: Annotated[int, typer.Option(min=1, help="Number of keys of one unit, for the paper's rule.")] = 1,
    as_json: Json = False,
) -> None:
    """Print the noisy sum above which discovery shows a key.

    Example: kanon reports threshold --epsilon 2 --delta 1e-9
    """
    from kanon.reports.job import PrivacyParameters, decimal

    chosen = decimal(epsilon, "--epsilon"), decimal(delta, "--delta")
    sharp = PrivacyParameters("discover", *chosen)
    paper = PrivacyParameters("discover", *chosen, rule="paper", sparsity=sparsity)
    if as_json:
        deviation = sharp.standard_deviation
        show_json({"sharp": sharp.threshold, "paper": paper.threshold, "standard_deviation": deviation})
        return
    typer.echo(f"epsilon {epsilon}, delta {delta}, contribution bound {sharp.contribution_bound:,}")
    typer.echo(f"sharp (default)                 {sharp.threshold:>15,}")
    typer.echo(f"paper, keys a unit: {sparsity:>4}        {paper.threshold:>15,}")
    typer.echo(f"standard deviation of the noise {sharp.standard_deviation:>15,.0f}")
    typer.echo("A key is shown if its sum with noise is above the threshold.")


@command
def explain(
    context: typer.Context,
    epsilon: Epsilon = "10",
    delta: Annotated[str, typer.Option(help="Delta of all jobs, a decimal up to 0.001; 0 without discovery.")] = "0",
    listed: Annotated[
        str | None,
        typer.Option("--type", metavar="JSON", help="The listed type whose released values are the keys (mode kanon)."),
    ] = None,
    joins: Annotated[int, typer.Option(min=1, max=10_000, help="Joins of one unit, each of another value.")] = 1,
    period: StepLength = 3600,
) -> None:
    """Explain the guarantee of summaries whose jobs spend this epsilon and delta together.

    With --type it adds what the unit's joins cost in the gate.

    Example: kanon reports explain --epsilon 4 --type '{"k": 50, "window": 720, "profile": "crossing"}' --joins 5
    """
    from kanon.noise.bound import Bound
    from kanon.reports.job import decimal, of_all, of_both

    spent, failing = decimal(epsilon, "--epsilon"), decimal(delta, "--delta")
    if not 0 < spent <= 1000 or failing > Fraction(1, 1000):
        raise CommandError("--epsilon must be above 0 and at most 1000, --delta from 0 to 0.001")
    lines = of_all(spent, failing)
    if listed is None:
        refuse_unused(context, ("joins", "period"), "without --type")
    elif (given := own_types([listed], None, period)) is not None:
        from kanon.gate.mechanism.bounds import guarantee

        (type_,) = given.types.values()
        lines += of_both("all summaries", Bound(spent, failing), guarantee(type_.parameters).watched, joins)
    for line in lines:
        typer.echo(line)


def _outputs(context: typer.Context, force: bool, files: dict[str, Path]) -> OutputFiles:
    """The output files of a command, checked; ``files`` by their options."""
    outputs = OutputFiles(context, force=force)
    for option, path in files.items():
        outputs.check(path, option)
    return outputs


def _filtering_ids(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if len(parts) > 64 or not all(part.isascii() and part.isdecimal() and int(part) < 1 << 64 for part in parts):
        raise typer.BadParameter("--filtering-ids must be at most 64 numbers below 2^64 with commas, such as 0,3")
    return tuple(int(part) for part in parts)


def _origin(given: str | None, *, site: bool = False) -> str | None:
    """An origin or a site in the form of shared_info."""
    from kanon.reports.shared_info import site_of

    if given is None:
        return None
    written = given.removesuffix("/")
    found = site_of(written)
    if found is None:
        raise CommandError("write an origin or a site as https://example.com")
    if site and found != written:
        raise CommandError(f"--reporting-site must be a site: write {found}")
    return written


def _key_document(path: Path) -> str:
    from kanon.reports.payload import KeyDocumentError

    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyDocumentError(f"{path} cannot be read: make keys with `kanon reports keys`") from error


def _warnings(rules: "Rules", *, no_noise: bool, debug: bool) -> list[str]:
    found = {
        "The summary holds exact sums (--no-noise): it has no guarantee, keep it private.": no_noise,
        "The debug summary holds exact sums: keep it private.": debug,
        "Values of any size were accepted (--no-contribution-bound): there is no guarantee.": (
            rules.contribution_bound is None
        ),
        "Reports of any age were accepted (--any-age).": not rules.check_age,
    }
    return [warning for warning, holds in found.items() if holds]


def _show(job: "Job", outcome: "JobOutcome", written: list[Path], warnings: list[str], *, as_json: bool) -> None:
    from kanon.reports.job import of_job

    promised = not any("no guarantee" in warning for warning in warnings)
    guarantee = of_job(job.parameters) if promised else []
    released = sum(len(partition.release().keys) for partition in outcome.partitions)
    if as_json:
        numbers = {name: getattr(outcome, name) for name in ("reports", "accepted", "duplicates", "left_out")}
        errors = dict(sorted(outcome.errors.items())) | {"NUM_REPORTS_WITH_ERRORS": outcome.errors.total()}
        show_json(
            {
                **numbers,
                "errors": errors,
                "keys_released": released,
                "units": len(outcome.units),
                "mode": job.parameters.mode,
                "epsilon": float(job.parameters.epsilon),
                "delta": float(job.parameters.delta),
                "threshold": job.parameters.threshold,
                "standard_deviation": job.parameters.standard_deviation,
                "files": [str(path) for path in written],
                "warnings": warnings,
                "guarantee": guarantee,
            }
        )
        return
    typer.echo(f"{outcome.reports:,} reports read, {outcome.accepted:,} counted, {outcome.duplicates:,} duplicates.")
    if outcome.left_out:
        typer.echo(f"  left out: {outcome.left_out:,} of other origins")
    for counter, count in sorted(outcome.errors.items()):
        typer.echo(f"  not accepted: {count:,} {counter}")
    typer.echo(f"{released:,} keys released, {len(outcome.units):,} units charged.")
    for line in (*(f"Written: {path}" for path in written), *(f"Warning: {text}" for text in warnings), *guarantee):
        typer.echo(line)
    typer.echo("This tool keeps no ledger: each further summary of the same reports adds its epsilon and delta.")
