"""``kanon reports demo``: turns a join log into encrypted reports, and checks and draws two summaries.

:class:`Demo` is what this demo and that of a service have in common: reports of a log, and checks of what is released.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.errors import one_line
from kanon.cli.files import Force, Outputs
from kanon.cli.options import DateOrder, SkipBadRows, log_reading, say_left_out
from kanon.cli.screen import progress, working
from kanon.joinlog import LogError, Reading
from kanon.pictures import BLUE, GREEN, TEXT, YELLOW, panels, saved
from kanon.reports.parameters import CONTRIBUTION_BOUND, Parameters, decimal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kanon.local.logs import JoinLog
    from kanon.reports.avro import Report
    from kanon.reports.keys import PublicKey

Log = Annotated[Path | None, typer.Option(exists=True, help="Join log with the columns time,set,client.")]
Window = Annotated[
    int, typer.Option("--window-hours", min=1, help="Hours per window: the unit is one client in one window.")
]

ORIGIN = "https://demo.test"
SEED = 1
"""The seed of the generated log."""
JOINS = 2
"""The number of joins of a client that count in a window."""
VALUE = CONTRIBUTION_BOUND // JOINS
"""What a join adds to the sum of its set."""
DELTA = "1e-8"
"""Delta of key discovery."""
UNUSED = 20
"""The number of declared keys without joins. They are released with noise like all others."""
PROCESSES = 2
"""Processes that open reports."""
MISS = Fraction(1, 10**9)
"""The probability that a check of the demo fails by chance."""


@dataclass(frozen=True)
class Demo:
    """A log whose joins are reported, and the sums that its reports must add up to.

    Attributes:
        log: joins in the order of time.
        window: hours of a window.
    """

    log: "JoinLog"
    window: int

    @cached_property
    def exact(self) -> dict[bytes, int]:
        """The exact sums by key, computed from the log: the first joins of each client in each window."""
        counted: Counter[tuple[str, int]] = Counter()
        sums: Counter[bytes] = Counter()
        for join in self.log.joins:
            unit = join.client, int(join.time * 1000) // (self.window * 3_600_000)
            counted[unit] += 1
            sums[key_of(join.set)] += VALUE if counted[unit] <= JOINS else 0
        return dict(sums)

    @property
    def unused(self) -> list[bytes]:
        """Keys without joins."""
        return [key_of(f"unused {number}") for number in range(UNUSED)]

    @property
    def declared(self) -> "NDArray[np.bytes_]":
        """The declared keys, sorted: those of the log's sets, and ``UNUSED`` keys without joins."""
        import numpy as np

        return np.frombuffer(b"".join(sorted({*self.exact, *self.unused})), "S16")

    def encrypted(self, origin: str, keys: "Sequence[PublicKey]") -> "list[Report]":
        """A report for every join."""
        from kanon.reports.clients.encrypt import encrypt
        from kanon.reports.clients.windows import Windows, contributions

        client = Windows(origin, length=self.window * 3_600_000)
        sealed = []
        with progress("reports encrypted", len(self.log.joins)) as advance:
            for report in contributions(client, self._events()):
                sealed.append(encrypt(report, keys))
                advance(1)
        return sealed

    def _events(self) -> Iterator[tuple[str, int, int, int]]:
        for join in self.log.joins:
            yield join.client, int(join.time * 1000), int.from_bytes(key_of(join.set), "big"), VALUE

    def check(self, metrics: dict[bytes, int], parameters: Parameters) -> None:
        """Compare every released number, and every key, with the exact sums.

        The noise of all keys is within ``largest_noise`` of 0, except with probability ``MISS``.

        Raises:
            AssertionError: a check failed.
        """
        expected = {*self.exact, *self.unused}
        most = largest_noise(parameters, len(expected))
        for key, metric in metrics.items():
            if key not in expected or abs(metric - self.exact.get(key, 0)) > most:
                raise AssertionError("a released number is too far from its exact sum: report this as a bug")
        tau = parameters.threshold
        if tau is None and metrics.keys() != expected:
            raise AssertionError("a declared key is missing: report this as a bug")
        if tau is not None:
            sure = {key for key, total in self.exact.items() if total > tau + most}
            if not sure <= metrics.keys() or not all(metric > tau for metric in metrics.values()):
                raise AssertionError("the threshold was not kept: report this as a bug")

    def in_words(self, metrics: dict[bytes, int], parameters: Parameters) -> str:
        """A checked summary in one sentence."""
        bar, tau = 2 * parameters.standard_deviation, parameters.threshold
        within = sum(abs(metric - self.exact.get(key, 0)) <= bar for key, metric in metrics.items())
        keys = f"{len(metrics):,} declared keys"
        if tau is not None:
            keys = f"{len(metrics):,} of {len(self.exact):,} sets, those above {tau / VALUE:.1f} joins"
        return (
            f"{parameters.mode}: {keys}; every number checked against its exact sum;"
            f" {within:,} lie within the error bar of {bar / VALUE:.1f} joins (two standard deviations)."
        )


def key_of(name: str) -> bytes:
    """The key of a set: the first 16 bytes of its hash."""
    return sha256(name.encode()).digest()[:16]


def both_parameters(epsilon: str) -> tuple[Parameters, Parameters]:
    """Those of a job with declared keys, and of one that discovers them."""
    each = decimal(epsilon, "--epsilon")
    return Parameters("declared", each), Parameters("discover", each, decimal(DELTA, "--delta"))


def largest_noise(parameters: Parameters, keys: int) -> int:
    """A bound on the noise of all keys together, which fails with probability ``MISS``."""
    from kanon.noise.exact import exp_bounds
    from kanon.reports.noise import DiscreteLaplace

    # P(|X| > t) <= 2 e**(-a (t + 1)) for each key.
    t = 1
    while 2 * keys > MISS * exp_bounds(DiscreteLaplace.of(parameters).a * (t + 1))[0]:
        t *= 2
    return t if parameters.threshold is None else min(t, parameters.threshold)


def log_of(path: Path | None, reading: "Reading") -> "JoinLog":
    """The log of a file, or a generated one. If the log cannot be read, the command ends with one line."""
    from kanon.local.logs import generated_log, read_log

    with one_line(LogError), working("reading the log"):
        read = read_log(path, None, None, reading=reading) if path else generated_log(SEED)
    say_left_out(reading)
    return read


@dataclass(frozen=True)
class Summary:
    """The result of one job over the demo's reports.

    Attributes:
        parameters: of the job.
        metrics: the released sums, by key of 16 bytes.
        accepted: reports that count.
        seen: the exact sum of all keys of all reports.
        faults: reports in error, and duplicates.
    """

    parameters: Parameters
    metrics: dict[bytes, int]
    accepted: int
    seen: int
    faults: int

    def check(self, demo: Demo) -> None:
        """Compare the summary with the log.

        Raises:
            AssertionError: a check failed.
        """
        demo.check(self.metrics, self.parameters)
        if self.seen != sum(demo.exact.values()) or self.faults:
            raise AssertionError("the reports do not add up to the log: report this as a bug")


def demo(
    context: typer.Context,
    log: Log = None,
    dates: DateOrder = None,
    skip_bad_rows: SkipBadRows = False,
    window: Window = 24,
    epsilon: Annotated[str, typer.Option(help="Epsilon of each of the two summaries.")] = "1",
    picture: Annotated[Path, typer.Option("--plot", help="File for the picture (PNG).")] = Path(
        "build/demo-reports.png"
    ),
    force: Force = False,
) -> None:
    """Turn a join log into encrypted reports, aggregate them twice, check every number and draw a picture.

    Example: kanon reports demo --log joins.csv --window-hours 6 --epsilon 2
    """
    outputs = Outputs(context, force=force)
    outputs.picture(picture, "--plot")
    import matplotlib as mpl  # noqa: F401, fail now and not after the work

    began = time.monotonic()
    both = both_parameters(epsilon)
    demo = Demo(log_of(log, log_reading(dates, skip_bad_rows)), window)
    typer.echo(f"{demo.log.title}: {len(demo.log.joins):,} joins of {len(demo.exact):,} sets.")
    typer.echo(f"Unit of privacy: one client in one window of {window} h. Its first {JOINS} joins count in a window.")
    with tempfile.TemporaryDirectory() as folder:
        summaries = aggregated(demo, both, Path(folder))
    typer.echo(f"{summaries[0].accepted:,} reports encrypted, opened and counted, {VALUE:,} for each join.")
    typer.echo(
        f"The declared keys of this demo are the log's own sets and {UNUSED} more. A real list must be fixed before and"
        " independent of the log: a key taken from the log reveals that somebody contributed to it."
    )
    for summary in summaries:
        summary.check(demo)
        typer.echo(demo.in_words(summary.metrics, summary.parameters))
    with working("drawing"):
        outputs.write({picture: draw(summaries, demo, epsilon)})
    _promise(both)
    typer.echo(f"Picture: {picture} ({time.monotonic() - began:.0f} s in all)")


def aggregated(demo: Demo, both: tuple[Parameters, Parameters], folder: Path) -> list[Summary]:
    """Encrypt the demo's reports, and run a job with declared keys and one that discovers them."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from kanon.reports import avro
    from kanon.reports.acceptance import Rules
    from kanon.reports.aggregate import Job, Secrets, aggregate
    from kanon.reports.keys import PublicKey

    private = {"4b1b6e1e-0d0c-4c7e-9d0e-6f3f6d1a2b3c": X25519PrivateKey.generate()}
    sealed = demo.encrypted(ORIGIN, [PublicKey(key_id, key.public_key()) for key_id, key in private.items()])
    files = tuple(folder / f"reports-{number}.avro" for number in range(PROCESSES))
    for number, file in enumerate(files):
        avro.write_reports(file, sealed[number::PROCESSES])
    avro.write_domain(folder / "domain.avro", demo.declared)
    end = int(max(join.time for join in demo.log.joins)) + demo.window * 3600
    rules = Rules(end, private, check_age=end - demo.log.start < 90 * 86_400)
    summaries = []
    for parameters in both:
        domain = (folder / "domain.avro",) if parameters.mode == "declared" else None
        with working(f"opening and adding up the reports: {parameters.mode}"):
            job = Job(files, domain, parameters, rules, id=f"demo-{parameters.mode}")
            outcome = aggregate(job, Secrets.draw(), PROCESSES, undeclared=True)
        metrics = {
            key: metric
            for release in (partition.release() for partition in outcome.partitions)
            for key, metric in zip(avro.listed(release.keys), release.metrics.tolist(), strict=True)
        }
        seen = sum(int(histogram.sums.sum()) for histogram in outcome.seen)
        faults = outcome.errors.total() + outcome.duplicates
        summaries.append(Summary(parameters, metrics, outcome.accepted, seen, faults))
    return summaries


def _promise(both: tuple[Parameters, Parameters]) -> None:
    from kanon.reports.guarantee import of_all, of_job

    parts: dict[str, list[str]] = {parameters.mode: of_job(parameters) for parameters in both}
    parts["Both summaries together"] = of_all(
        sum((p.epsilon for p in both), Fraction(0)), sum((p.delta for p in both), Fraction(0))
    )
    for name, lines in parts.items():
        typer.echo("\n  ".join([f"\n{name}:", *lines]))


def draw(summaries: list[Summary], demo: Demo, epsilon: str) -> bytes:
    """Draw exact sums and released numbers of every set, in joins, with bars of two standard deviations."""
    order = [*sorted(demo.exact, key=lambda key: -demo.exact[key]), *demo.unused]
    figure, axes = panels(2, 1, (11, 8), sharex=True, sharey=True)
    for panel, summary, colour in zip(axes.flat, summaries, (BLUE, GREEN), strict=True):
        metrics, parameters = summary.metrics, summary.parameters
        shown = [(place, metrics[key] / VALUE) for place, key in enumerate(order, 1) if key in metrics]
        places, numbers = zip(*shown, strict=True) if shown else ((), ())
        bar = 2 * parameters.standard_deviation / VALUE
        line = [demo.exact.get(key, 0) / VALUE for key in order]
        panel.plot(range(1, len(order) + 1), line, color=TEXT, linewidth=1.2, zorder=3, label="exact sum")
        panel.errorbar(
            places, numbers, yerr=bar, fmt="o", markersize=2.5, elinewidth=0.8, color=colour, alpha=0.8,
            label=f"released, ± two standard deviations ({bar:.1f} joins)",
        )  # fmt: skip
        if parameters.threshold is not None:
            panel.axhline(parameters.threshold / VALUE, color=YELLOW, label="threshold: sets below it are not shown")
        panel.set_title(f"{'Declared keys' if parameters.threshold is None else 'Key discovery'}", loc="left")
        panel.set_yscale("symlog", linthresh=10)
        panel.set_ylabel("joins counted")
        panel.grid(visible=True, alpha=0.3)
        panel.legend(loc="upper right", frameon=False)
    axes[-1, 0].set_xlabel(f"sets, the largest first; the last {UNUSED} are declared and never joined")
    title = f"{demo.log.title}: windows of {demo.window} h, epsilon {epsilon}, delta {DELTA}"
    figure.suptitle(f"Sums of encrypted reports ({title})")
    figure.tight_layout()
    return saved(figure)
