"""``kanon reports demo``: turns a join log into encrypted reports, and checks and draws two summaries."""

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.errors import one_line
from kanon.cli.files import Force, Outputs
from kanon.cli.options import DateOrder, SkipBadRows, log_reading, say_left_out
from kanon.cli.screen import progress, working
from kanon.joinlog import Join, LogError, Reading
from kanon.pictures import BLUE, GREEN, TEXT, YELLOW, panels, saved

if TYPE_CHECKING:
    from kanon.local.logs import JoinLog
    from kanon.reports.aggregate import Job, Outcome
    from kanon.reports.parameters import Parameters

Log = Annotated[Path | None, typer.Option(exists=True, help="Join log with the columns time,set,client.")]
Window = Annotated[
    int, typer.Option("--window-hours", min=1, help="Hours per window: the unit is one client in one window.")
]
Joins = Annotated[int, typer.Option(min=1, max=65_536, help="Number of joins of a client that count in a window.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the generated log.")]

ORIGIN = "https://demo.test"
UNUSED = 20
"""The number of declared keys without joins. They are released with noise like all others."""
PROCESSES = 2
"""Processes that open reports."""
MISS = Fraction(1, 10**9)
"""The probability that a check of the demo fails by chance."""


@dataclass(frozen=True)
class Summary:
    """One job over the demo's reports."""

    name: str
    job: "Job"
    outcome: "Outcome"

    @property
    def metrics(self) -> dict[bytes, int]:
        """The released sums, by key of 16 bytes."""
        from kanon.reports.avro import listed

        return {
            key: metric
            for release in (partition.release() for partition in self.outcome.partitions)
            for key, metric in zip(listed(release.keys), release.metrics.tolist(), strict=True)
        }


def demo(
    context: typer.Context,
    log: Log = None,
    dates: DateOrder = None,
    skip_bad_rows: SkipBadRows = False,
    window: Window = 24,
    joins: Joins = 2,
    epsilon: Annotated[str, typer.Option(help="Epsilon of each of the two summaries.")] = "1",
    delta: Annotated[str, typer.Option(help="Delta of key discovery.")] = "1e-8",
    picture: Annotated[Path, typer.Option("--plot", help="File for the picture (PNG).")] = Path(
        "build/demo-reports.png"
    ),
    seed: Seed = 1,
    force: Force = False,
) -> None:
    """Turn a join log into encrypted reports, aggregate them twice, check every number and draw a picture.

    Example: kanon reports demo --log joins.csv --window-hours 6 --epsilon 2
    """
    from kanon.reports.parameters import Parameters, decimal

    outputs = Outputs(context, force=force)
    outputs.picture(picture, "--plot")
    import matplotlib as mpl  # noqa: F401, fail now and not after the work

    began = time.monotonic()
    declared = Parameters("declared", decimal(epsilon, "--epsilon"))
    discover = Parameters("discover", decimal(epsilon, "--epsilon"), decimal(delta, "--delta"))
    read = log_of(log, seed, log_reading(dates, skip_bad_rows))
    value = declared.contribution_bound // joins
    exact = exact_sums(read, window, joins, value)
    typer.echo(f"{read.title}: {len(read.joins):,} joins of {len(exact):,} sets.")
    typer.echo(f"Unit of privacy: one client in one window of {window} h. Its first {joins} joins count in a window.")
    with tempfile.TemporaryDirectory() as folder:
        summaries = aggregated(read, exact, window, value, (declared, discover), Path(folder))
    typer.echo(f"{summaries[0].outcome.accepted:,} reports encrypted, opened and counted, {value:,} for each join.")
    typer.echo(
        f"The declared keys of this demo are the log's own sets and {UNUSED} more. A real list must be fixed before and"
        " independent of the log: a key taken from the log reveals that somebody contributed to it."
    )
    for summary in summaries:
        check(summary, exact)
        typer.echo(in_words(summary.name, summary.metrics, summary.job.parameters, exact, value))
    with working("drawing"):
        title = f"{read.title}: windows of {window} h, epsilon {epsilon}, delta {delta}"
        outputs.write({picture: draw(summaries, exact, value, title)})
    _promise(summaries)
    typer.echo(f"Picture: {picture} ({time.monotonic() - began:.0f} s in all)")


def key_of(name: str) -> bytes:
    """The key of a set: the first 16 bytes of its hash."""
    return sha256(name.encode()).digest()[:16]


def log_of(path: Path | None, seed: int, reading: "Reading") -> "JoinLog":
    """The log of a file, or a generated one. If the log cannot be read, the command ends with one line."""
    from kanon.local.logs import generated_log, read_log

    with one_line(LogError), working("reading the log"):
        read = read_log(path, None, None, reading=reading) if path else generated_log(seed)
    say_left_out(reading)
    return read


def declared_keys(exact: dict[bytes, int]) -> set[bytes]:
    """The keys of the log's sets, and ``UNUSED`` keys without joins."""
    return exact.keys() | {key_of(f"unused {number}") for number in range(UNUSED)}


def exact_sums(log: "JoinLog", window: int, joins: int, value: int) -> dict[bytes, int]:
    """The exact sums, computed from the log: the first joins of each client in each window."""
    counted: Counter[tuple[str, int]] = Counter()
    sums: Counter[bytes] = Counter()
    for join in log.joins:
        unit = join.client, int(join.time * 1000) // (window * 3_600_000)
        counted[unit] += 1
        sums[key_of(join.set)] += value if counted[unit] <= joins else 0
    return dict(sums)


def aggregated(
    log: "JoinLog", exact: dict[bytes, int], window: int, value: int, both: "tuple[Parameters, Parameters]",
    folder: Path,
) -> list[Summary]:  # fmt: skip
    """Encrypt a report for every join, and run a job with declared keys and one that discovers them."""
    import numpy as np
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from kanon.reports import avro
    from kanon.reports.acceptance import Rules
    from kanon.reports.aggregate import Job, Secrets, aggregate
    from kanon.reports.clients.encrypt import encrypt
    from kanon.reports.clients.windows import Windows, contributions
    from kanon.reports.keys import PublicKey

    private = {"4b1b6e1e-0d0c-4c7e-9d0e-6f3f6d1a2b3c": X25519PrivateKey.generate()}
    public = [PublicKey(key_id, key.public_key()) for key_id, key in private.items()]
    client = Windows(ORIGIN, length=window * 3_600_000)
    sealed = []
    with progress("reports encrypted", len(log.joins)) as advance:
        for report in contributions(client, events(log.joins, value)):
            sealed.append(encrypt(report, public))
            advance(1)
    files = [folder / f"reports-{number}.avro" for number in range(PROCESSES)]
    for number, file in enumerate(files):
        avro.write_reports(file, sealed[number::PROCESSES])
    avro.write_domain(folder / "domain.avro", np.frombuffer(b"".join(declared_keys(exact)), "S16"))
    end = int(max(join.time for join in log.joins)) + window * 3600
    jobs = [
        Job(tuple(files), (folder / "domain.avro",) if parameters.mode == "declared" else None, parameters,
            Rules(end, private, check_age=end - log.start < 90 * 86_400), id=f"demo-{parameters.mode}")
        for parameters in both
    ]  # fmt: skip
    summaries = []
    for job in jobs:
        with working(f"opening and adding up the reports: {job.parameters.mode}"):
            outcome = aggregate(job, Secrets.draw(), PROCESSES, undeclared=True)
            summaries.append(Summary(job.parameters.mode, job, outcome))
    return summaries


def events(joins: list[Join], value: int) -> Iterator[tuple[str, int, int, int]]:
    """The contribution of each join: client, milliseconds, key, value."""
    for join in joins:
        yield join.client, int(join.time * 1000), int.from_bytes(key_of(join.set), "big"), value


def check(summary: Summary, exact: dict[bytes, int]) -> None:
    """Compare every released number, and every key, with the exact sums.

    The noise of all keys is within ``largest_noise`` of 0, except with probability ``MISS``.

    Raises:
        AssertionError: a check failed.
    """
    check_numbers(summary.metrics, summary.job.parameters, exact)
    seen = sum(int(histogram.sums.sum()) for histogram in summary.outcome.seen)
    if seen != sum(exact.values()) or summary.outcome.errors.total() or summary.outcome.duplicates:
        raise AssertionError("the reports do not add up to the log: report this as a bug")


def check_numbers(metrics: dict[bytes, int], parameters: "Parameters", exact: dict[bytes, int]) -> None:
    """Compare the released numbers with the exact sums, as :func:`check` does.

    Raises:
        AssertionError: a check failed.
    """
    expected = declared_keys(exact)
    most = largest_noise(parameters, len(expected))
    for key, metric in metrics.items():
        if key not in expected or abs(metric - exact.get(key, 0)) > most:
            raise AssertionError("a released number is too far from its exact sum: report this as a bug")
    tau = parameters.threshold
    if tau is None and metrics.keys() != expected:
        raise AssertionError("a declared key is missing: report this as a bug")
    if tau is not None:
        sure = {key for key, total in exact.items() if total > tau + most}
        if not sure <= metrics.keys() or not all(metric > tau for metric in metrics.values()):
            raise AssertionError("the threshold was not kept: report this as a bug")


def largest_noise(parameters: "Parameters", keys: int) -> int:
    """A bound on the noise of all keys together, which fails with probability ``MISS``."""
    from kanon.noise.exact import exp_bounds
    from kanon.reports.noise import DiscreteLaplace

    # P(|X| > t) <= 2 e**(-a (t + 1)) for each key.
    t = 1
    while 2 * keys > MISS * exp_bounds(DiscreteLaplace.of(parameters).a * (t + 1))[0]:
        t *= 2
    return t if parameters.threshold is None else min(t, parameters.threshold)


def in_words(
    name: str, metrics: dict[bytes, int], parameters: "Parameters", exact: dict[bytes, int], value: int
) -> str:
    """The summary in one sentence."""
    bar = 2 * parameters.standard_deviation
    within = sum(abs(metric - exact.get(key, 0)) <= bar for key, metric in metrics.items())
    of = f"{len(metrics):,} of {len(exact):,} sets" if parameters.threshold else f"{len(metrics):,} declared keys"
    hidden = f", those above {parameters.threshold / value:.1f} joins" if parameters.threshold else ""
    return (
        f"{name}: {of}{hidden}; every number checked against its exact sum;"
        f" {within:,} lie within the error bar of {bar / value:.1f} joins (two standard deviations)."
    )


def _promise(summaries: list[Summary]) -> None:
    from kanon.reports.guarantee import of_all, of_job

    for summary in summaries:
        typer.echo(f"\n{summary.name}:")
        for line in of_job(summary.job.parameters):
            typer.echo(f"  {line}")
    spent = [summary.job.parameters for summary in summaries]
    typer.echo("\nBoth summaries together:")
    for line in of_all(sum((p.epsilon for p in spent), Fraction(0)), sum((p.delta for p in spent), Fraction(0))):
        typer.echo(f"  {line}")


def draw(summaries: list[Summary], exact: dict[bytes, int], value: int, title: str) -> bytes:
    """Draw exact sums and released numbers of every set, in joins, with bars of two standard deviations."""
    order = [*sorted(exact, key=lambda key: -exact[key]), *(key_of(f"unused {number}") for number in range(UNUSED))]
    figure, axes = panels(2, 1, (11, 8), sharex=True, sharey=True)
    for panel, summary, colour in zip(axes.flat, summaries, (BLUE, GREEN), strict=True):
        metrics, parameters = summary.metrics, summary.job.parameters
        shown = [(place, metrics[key] / value) for place, key in enumerate(order, 1) if key in metrics]
        places, numbers = zip(*shown, strict=True) if shown else ((), ())
        bar = 2 * parameters.standard_deviation / value
        line = [exact.get(key, 0) / value for key in order]
        panel.plot(range(1, len(order) + 1), line, color=TEXT, linewidth=1.2, zorder=3, label="exact sum")
        panel.errorbar(
            places, numbers, yerr=bar, fmt="o", markersize=2.5, elinewidth=0.8, color=colour, alpha=0.8,
            label=f"released, ± two standard deviations ({bar:.1f} joins)",
        )  # fmt: skip
        if parameters.threshold is not None:
            panel.axhline(parameters.threshold / value, color=YELLOW, label="threshold: sets below it are not shown")
        panel.set_title(f"{'Declared keys' if parameters.threshold is None else 'Key discovery'}", loc="left")
        panel.set_yscale("symlog", linthresh=10)
        panel.set_ylabel("joins counted")
        panel.grid(visible=True, alpha=0.3)
        panel.legend(loc="upper right", frameon=False)
    axes[-1, 0].set_xlabel(f"sets, the largest first; the last {UNUSED} are declared and never joined")
    figure.suptitle(f"Sums of encrypted reports ({title})")
    figure.tight_layout()
    return saved(figure)
