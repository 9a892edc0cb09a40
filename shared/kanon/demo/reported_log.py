"""The reports of a join log, and the exact sums that a summary of them is compared with.

Both demos of reports use it: the one of local files, and the one of a running service.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from kanon.demo.logs import DemoLog
from kanon.noise.exact import exp_bounds
from kanon.pictures import BLUE, GREEN, PINK, TEXT, YELLOW, panels, saved
from kanon.reports import avro
from kanon.reports.aggregate import Job, NoiseSecrets, aggregate
from kanon.reports.clients.devices import Windows, contributions
from kanon.reports.clients.encrypt import encrypt
from kanon.reports.job import Mode, PrivacyParameters
from kanon.reports.noise import DiscreteLaplace
from kanon.reports.payload import EncryptionKey
from kanon.reports.shared_info import CONTRIBUTION_BOUND, Rules

ORIGIN = "https://demo.test"
JOINS = 2
"""The number of joins of a client that count in a window."""
WINDOW = 24
"""Hours of a window: the unit of privacy is one client in one window."""
VALUE = CONTRIBUTION_BOUND // JOINS
"""What a join adds to the sum of its set."""
UNUSED = 20
"""The number of declared keys without joins. They are released with noise like all others."""
KEY_ID = "4b1b6e1e-0d0c-4c7e-9d0e-6f3f6d1a2b3c"
PROCESSES = 2
"""Processes that open reports."""
TITLES: dict[Mode, str] = {"declared": "Declared keys", "discover": "Key discovery", "kanon": "Released keys"}
MISS = Fraction(1, 10**9)
"""The probability that a check of the demo fails by chance."""


@dataclass(frozen=True)
class ReportedLog:
    """A log whose joins are reported, and the sums that its reports must add up to.

    Attributes:
        log: joins in the order of time.
        released: the keys that the gate has released, sorted, for the mode kanon.
    """

    log: DemoLog
    released: NDArray[np.bytes_] = field(default_factory=lambda: np.empty(0, "S16"))

    @cached_property
    def exact(self) -> dict[bytes, int]:
        """The exact sums by key, computed from the log: the first joins of each client in each window."""
        counted: Counter[tuple[str, int]] = Counter()
        sums: Counter[bytes] = Counter()
        for join in self.log.joins:
            unit = join.client, int(join.time * 1000) // (WINDOW * 3_600_000)
            counted[unit] += 1
            sums[key_of(join.set)] += VALUE if counted[unit] <= JOINS else 0
        return dict(sums)

    @property
    def hours(self) -> set[int]:
        """The hours since 1970 for which the reports are scheduled: the ends of their windows."""
        return {(int(join.time) // 3600 // WINDOW + 1) * WINDOW for join in self.log.joins}

    @property
    def newer(self) -> "ReportedLog":
        """The newer half of the windows."""
        hours = sorted(self.hours)
        first = (hours[len(hours) // 2] - WINDOW) * 3600
        return replace(self, log=replace(self.log, joins=[join for join in self.log.joins if join.time >= first]))

    @property
    def unused(self) -> list[bytes]:
        """Keys without joins."""
        return [key_of(f"unused {number}") for number in range(UNUSED)]

    @property
    def declared(self) -> NDArray[np.bytes_]:
        """The declared keys, sorted: those of the log's sets, and ``UNUSED`` keys without joins."""
        return np.frombuffer(b"".join(sorted({*self.exact, *self.unused})), "S16")

    def keys(self, mode: Mode) -> NDArray[np.bytes_] | None:
        """The keys of a job, sorted; None in discovery."""
        return {"declared": self.declared, "kanon": self.released, "discover": None}[mode]

    def encrypted(self, origin: str, keys: Sequence[EncryptionKey]) -> Iterator[avro.Report]:
        """A report for every join."""
        client = Windows(origin, length=WINDOW * 3_600_000)
        for report in contributions(client, self._events()):
            yield encrypt(report, keys)

    def _events(self) -> Iterator[tuple[str, int, int, int]]:
        for join in self.log.joins:
            yield join.client, int(join.time * 1000), int.from_bytes(key_of(join.set), "big"), VALUE

    def check(self, metrics: dict[bytes, int], parameters: PrivacyParameters) -> None:
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
        tau, keys = parameters.threshold, self.keys(parameters.mode)
        if keys is not None and metrics.keys() != set(avro.listed(keys)):
            raise AssertionError(f"the keys are not the {parameters.mode} ones: report this as a bug")
        if tau is not None:
            sure = {key for key, total in self.exact.items() if total > tau + most}
            if not sure <= metrics.keys() or not all(metric > tau for metric in metrics.values()):
                raise AssertionError("the threshold was not kept: report this as a bug")

    def in_words(self, metrics: dict[bytes, int], parameters: PrivacyParameters) -> str:
        """A checked summary in one sentence."""
        bar, tau = 2 * parameters.standard_deviation, parameters.threshold
        within = sum(abs(metric - self.exact.get(key, 0)) <= bar for key, metric in metrics.items())
        keys = f"{len(metrics):,} {'released' if parameters.mode == 'kanon' else 'declared'} keys"
        if tau is not None:
            keys = f"{len(metrics):,} of {len(self.exact):,} sets, those above {tau / VALUE:.1f} joins"
        return (
            f"{parameters.mode}: {keys}; every number checked against its exact sum;"
            f" {within:,} lie within the error bar of {bar / VALUE:.1f} joins (two standard deviations)."
        )


def key_of(name: str) -> bytes:
    """The key of a set: the first 16 bytes of its hash."""
    return sha256(name.encode()).digest()[:16]


def largest_noise(parameters: PrivacyParameters, keys: int) -> int:
    """A bound on the noise of all keys together, which fails with probability ``MISS``."""
    # P(|X| > t) <= 2 e**(-a (t + 1)) for each key.
    t = 1
    while 2 * keys > MISS * exp_bounds(DiscreteLaplace.of(parameters).a * (t + 1))[0]:
        t *= 2
    return t if parameters.threshold is None else min(t, parameters.threshold)


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

    parameters: PrivacyParameters
    metrics: dict[bytes, int]
    accepted: int
    seen: int
    faults: int

    def check(self, reported: ReportedLog) -> None:
        """Compare the summary with the log.

        Raises:
            AssertionError: a check failed.
        """
        reported.check(self.metrics, self.parameters)
        if self.seen != sum(reported.exact.values()) or self.faults:
            raise AssertionError("the reports do not add up to the log: report this as a bug")


@dataclass(frozen=True)
class Files:
    """Files of encrypted reports and of keys, from which jobs are run."""

    reported: ReportedLog
    folder: Path  # empty before
    private: X25519PrivateKey  # of the reports

    @property
    def keys(self) -> list[EncryptionKey]:
        """The public keys of the clients."""
        return [EncryptionKey(KEY_ID, self.private.public_key())]

    @property
    def reports(self) -> tuple[Path, ...]:
        """The files of reports: one for each process."""
        return tuple(self.folder / f"reports-{number}.avro" for number in range(PROCESSES))

    def write(self, sealed: Sequence[avro.Report]) -> None:
        """Write the reports."""
        for number, file in enumerate(self.reports):
            avro.write_reports(file, sealed[number::PROCESSES])

    def aggregated(self, parameters: PrivacyParameters) -> Summary:
        """Run a job over the files."""
        log = self.reported.log
        end = int(max(join.time for join in log.joins)) + WINDOW * 3600
        rules = Rules(end, {KEY_ID: self.private}, check_age=end - log.start < 90 * 86_400)
        keys, domain = self.reported.keys(parameters.mode), None
        if keys is not None:
            domain = (self.folder / f"{parameters.mode}.avro",)
            avro.write_domain(domain[0], keys)
        job = Job(self.reports, domain, parameters, rules, id=f"demo-{parameters.mode}")
        outcome = aggregate(job, NoiseSecrets.draw(), PROCESSES, undeclared=True)
        metrics = {
            key: metric
            for release in (partition.release() for partition in outcome.partitions)
            for key, metric in zip(avro.listed(release.keys), release.metrics.tolist(), strict=True)
        }
        seen = sum(int(histogram.sums.sum()) for histogram in outcome.seen)
        return Summary(parameters, metrics, outcome.accepted, seen, outcome.errors.total() + outcome.duplicates)


def draw(summaries: Sequence[Summary], reported: ReportedLog, title: str) -> bytes:
    """Draw exact sums and released numbers of every set, in joins, with bars of two standard deviations."""
    order = [*sorted(reported.exact, key=lambda key: -reported.exact[key]), *reported.unused]
    figure, axes = panels(len(summaries), 1, (11, 4 * len(summaries)), sharex=True, sharey=True)
    for panel, summary, colour in zip(axes.flat, summaries, (BLUE, GREEN, PINK), strict=False):
        metrics, parameters = summary.metrics, summary.parameters
        shown = [(place, metrics[key] / VALUE) for place, key in enumerate(order, 1) if key in metrics]
        places, numbers = zip(*shown, strict=True) if shown else ((), ())
        bar = 2 * parameters.standard_deviation / VALUE
        line = [reported.exact.get(key, 0) / VALUE for key in order]
        panel.plot(range(1, len(order) + 1), line, color=TEXT, linewidth=1.2, zorder=3, label="exact sum")
        panel.errorbar(
            places, numbers, yerr=bar, fmt="o", markersize=2.5, elinewidth=0.8, color=colour, alpha=0.8,
            label=f"released, ± two standard deviations ({bar:.1f} joins)",
        )  # fmt: skip
        if parameters.threshold is not None:
            panel.axhline(parameters.threshold / VALUE, color=YELLOW, label="threshold: sets below it are not shown")
        panel.set_title(TITLES[parameters.mode], loc="left")
        panel.set_yscale("symlog", linthresh=10)
        panel.set_ylabel("joins counted")
        panel.grid(visible=True, alpha=0.3)
        panel.legend(loc="upper right", frameon=False)
    axes[-1, 0].set_xlabel(f"sets, the largest first; the last {UNUSED} are declared and never joined")
    figure.suptitle(f"Sums of encrypted reports ({title})")
    figure.tight_layout()
    return saved(figure)
