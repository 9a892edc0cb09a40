"""Reports of a directory: collected over HTTP, kept as objects, and worked off by a thread of the service."""

import json
import secrets
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aws_lambda_powertools import Logger
from pydantic import ValidationError

from kanon import clock
from kanon.disk import forget_unfinished, put_file
from kanon.errors import ConfigurationError, ThrottledError, reason
from kanon.http.edge import resolver
from kanon.keys import Secret
from kanon.noise.words import NoiseKey
from kanon.reports.collect_routes import CollectRoutes, counted_as
from kanon.reports.collecting import REPORT_BODIES, ReportMessage
from kanon.reports.job import Amount
from kanon.reports.service.answers import JOB_BODIES, jobs_form
from kanon.reports.service.bodies import reader
from kanon.reports.service.job_routes import JobRoutes
from kanon.reports.service.one_machine import FileEpoch, FileSpending, ReportsWorker
from kanon.reports.service.rotation import Rotation
from kanon.reports.service.shards import COUNTED, Shards
from kanon.reports.service.stages import Stages
from kanon.reports.settings import CollectSettings, Jobs, fingerprints
from kanon.reports.storage.disk import NAME, FileBudgets, FolderObjects, KeyFiles, ReportsFile
from kanon.reports.storage.key_ring import KnownKeys
from kanon.reports.storage.objects import UnwritableError
from kanon.serving.directory import REPORTS, Directory
from kanon.serving.evaluating import told
from kanon.serving.lists import ListsFile
from kanon.serving.measures import Measures, ReportMeasures
from kanon.serving.released_keys import published_lists
from kanon.serving.routes import RouteKind, Routes

OWNER = "reports"
COLLECTED, SUMMARIES, WORK = "reports", "summaries", "work"
"""The folders of reports, of domains and summaries, and of intermediate results; the first two are named by jobs."""
NOISE_KEY, FIRST_KEY = "report-noise-key", "1"
DEFAULTS = {"epsilon_cap": "64", "delta_cap": "1e-7"}
"""As in the template."""
SECONDS_A_TURN, SECONDS_A_ROTATION, SECONDS_A_SWEEP = 60.0, 300.0, 86_400.0


@dataclass(frozen=True)
class RequestedParameters:
    """What a caller wants the template's parameters of these names to be; None keeps what they are.

    Origins turn reports on. The caps never change.
    """

    allowed_origins: str | None = None
    epsilon_cap: str | None = None
    delta_cap: str | None = None


def _now() -> float:
    return clock.now()


class DirectoryReports:
    """The reports of an open directory.

    Attributes:
        settings, collecting: the settings in force.
        file: jobs, budgets, arrivals and the ring of public keys.
    """

    def __init__(self, directory: Directory, settings: Jobs, collecting: CollectSettings, key: NoiseKey) -> None:
        path = directory.path
        self.settings, self.collecting = settings, collecting
        self.file = ReportsFile(path)
        self.file.remember()  # a commit of a process that stopped before it did
        self._folders = {name: FolderObjects(path / name) for name in (COLLECTED, SUMMARIES, WORK)}
        for name in self._folders:
            forget_unfinished(path / name)
        forget_unfinished(path / "secrets")
        self.epoch = FileEpoch(self.file)
        self.known = KnownKeys(self.epoch.ring)
        self.budgets = FileBudgets(self.file, Amount.of(settings.epsilon_cap, settings.delta_cap))
        self._keys = KeyFiles(path / "secrets")
        self._noise_key, self._deployment = key, directory.settings.deployment
        self._types, self._lists = directory.types, ListsFile(path)
        directory.closes(self._lists)

    def bucket(self, name: str) -> FolderObjects:
        """The folder that a job names.

        Raises:
            UnwritableError: a directory has no bucket of this name.
        """
        if name not in (COLLECTED, SUMMARIES):
            raise UnwritableError("a directory has the buckets reports and summaries alone")
        return self._folders[name]

    def worker(self, ended: Callable[[str], None]) -> ReportsWorker:
        """The work on jobs and keys. ``ended`` is told the code of each job that ends."""
        common: dict[str, Any] = {
            "jobs": self.file,
            "work": self._folders[WORK],
            "bucket": self.bucket,
            "request": reader(self.settings),
            "clock": _now,
            "ended": ended,
        }
        stages = Stages(
            **common,
            budgets=self.budgets,
            committing=lambda epoch: FileSpending(self.budgets, epoch, _now),
            ring=lambda: self.epoch.opening(clock.now()),
            noise_key=self._noise_key,
            deployment=self._deployment,
            collected=COLLECTED,
        )
        shards = Shards(**common, keys=self._keys.existing)
        rotation = Rotation(self.epoch, self._keys)
        return ReportsWorker(self.file, self._folders[COLLECTED], self._folders[WORK], stages, shards, rotation)

    def collect_routes(self) -> CollectRoutes:
        """The routes of the collector."""
        return CollectRoutes(self.collecting.allows, lambda: self.epoch.ring, lambda: self.known, self._arrive)

    def job_routes(self, wake: Callable[[str], None]) -> JobRoutes:
        """The routes of jobs."""
        lists = partial(published_lists, self._types, self._lists, self._folders[WORK])
        return JobRoutes(self.settings, lambda: self.file, lambda: self.budgets, self.bucket, wake, lists)

    def work(self, measures: Measures, logger: Logger) -> "ReportWork":
        """What a service does with them."""
        return ReportWork(self, measures, logger)

    def _arrive(self, message: ReportMessage) -> None:
        try:
            self.file.arrive(message.text())
        except sqlite3.Error as error:  # the disk is full, for example
            raise ThrottledError("the report is not stored: send it again") from error

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def open_reporting(directory: Directory, asked: RequestedParameters) -> DirectoryReports | None:
    """The reports of a directory; None if they were never turned on.

    Raises:
        ConfigurationError: a setting is invalid, has changed and never may, or a secret is missing.
    """
    control = directory.control
    stored: dict[str, str] = json.loads(control.text(REPORTS) or "{}")
    given = {name: value for name, value in vars(asked).items() if value is not None}
    if asked.allowed_origins == "":
        raise ConfigurationError(
            "--report-origins is empty: list https origins, or * for all; reports are never turned off"
        )
    if not stored and asked.allowed_origins is None:
        if given:
            raise ConfigurationError("the caps have no effect without reports: turn them on with --report-origins")
        return None
    values = DEFAULTS | stored | given
    settings, collecting = _settings(directory, values)
    before = control.recorded(OWNER)
    current = fingerprints(settings)
    changed = [name for name in ("epsilon-cap", "delta-cap") if before.get(name, current[name]) != current[name]]
    if changed:
        raise ConfigurationError(f"{changed[0]} is {before[changed[0]]} in this deployment, and never changes")
    key = _noise_key(directory.path / "secrets", fresh=not before)
    control.check(OWNER, current)
    control.put_text(REPORTS, json.dumps(values))
    return DirectoryReports(directory, settings, collecting, key)


def _settings(directory: Directory, values: dict[str, str]) -> tuple[Jobs, CollectSettings]:
    places = {
        "deployment": directory.settings.deployment,
        "control_table": NAME,
        "report_jobs_table": NAME,
        "reports_bucket": COLLECTED,
        "summaries_bucket": SUMMARIES,
        "report_buckets": "",
        "stages_url": "none",
        "arrivals_url": "none",
        "edge_secret": "",
    }
    try:
        return Jobs.model_validate({**places, **values}), CollectSettings.model_validate({**places, **values})
    except ValidationError as error:
        problems = (f"{each['loc'][0]}: {reason(each)}" for each in error.errors())
        raise ConfigurationError("; ".join(problems)) from error


def _noise_key(folder: Path, *, fresh: bool) -> NoiseKey:
    file = folder / NOISE_KEY
    if fresh:
        put_file(file, secrets.token_urlsafe(48).encode())
    if not file.exists():
        raise ConfigurationError(f"{file} is missing: put it back from a backup")
    return NoiseKey(FIRST_KEY, Secret.derived(f"{NOISE_KEY}/{FIRST_KEY}", file.read_text().strip()).key)


class ReportWork:
    """The work on the reports of a directory, in a thread of its own."""

    def __init__(self, reporting: DirectoryReports, measures: Measures, logger: Logger) -> None:
        self._measures, self._logger = ReportMeasures(measures), logger
        self._reporting, self._worker = reporting, reporting.worker(self._ended)
        self._stop, self._wake = threading.Event(), threading.Event()
        self._error = ""
        self._rotated = self._swept = float("-inf")

    def start(self) -> threading.Thread:
        """Work until :meth:`stop` is called."""
        thread = threading.Thread(target=self._run, name="reports", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Let the thread end after what it is doing."""
        self._stop.set()
        self._wake.set()

    def wake(self, _: str = "") -> None:
        """There is a job to begin."""
        self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            self.turn(clock.now())
            self._wake.wait(SECONDS_A_TURN)

    def turn(self, now: float) -> None:
        """Rotate keys, store what has arrived, take jobs on, delete what is old: what is due at ``now``."""
        self._error = ""
        if not 0 <= now - self._rotated < SECONDS_A_ROTATION and self._try(lambda: self._worker.rotation.run(now)):
            self._rotated = now
        if self._try(lambda: self._worker.store(now)):
            self._try(lambda: self._worker.work_off(lambda: not self._stop.is_set(), self._failed))
        if not 0 <= now - self._swept < SECONDS_A_SWEEP and self._try(lambda: self._worker.expire(now)):
            self._swept = now

    def _try(self, work: Callable[[], Any]) -> bool:
        try:
            work()
        except Exception as error:  # noqa: BLE001, its text may hold anything
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        self._measures.failed.inc()
        self._error = "reports have stopped: the log of the service says why"
        self._logger.error("a stage of reports failed and will be retried", extra=told(error))

    def _ended(self, code: str) -> None:
        self._measures.count(COUNTED.get(code, "JobsRefused"))

    def problem(self, now: float) -> str:
        """What is wrong, in words; empty if nothing is."""
        ring = self._reporting.epoch.ring.read()
        if not self._error and ring is not None and not ring.published(now):
            return "no public key is published"
        return self._error

    def routes(self) -> dict[RouteKind, Routes]:
        """New resolvers of all routes of reports."""
        collected, jobs = resolver(self._logger), resolver(self._logger, jobs_form)
        self._reporting.collect_routes().add_to(collected)
        self._reporting.job_routes(self.wake).add_to(jobs)
        return {
            RouteKind.COLLECTED: Routes(collected, REPORT_BODIES),
            RouteKind.JOBS: Routes(jobs, JOB_BODIES, jobs_form),
        }

    def count(self, method: str, path: str, status: int) -> None:
        """Count a request of the collector by the status of its answer."""
        counted = counted_as(method, path, status)
        if counted is not None:
            self._measures.count(counted)

    def close(self) -> None:
        """Close the file of reports."""
        self._reporting.close()
