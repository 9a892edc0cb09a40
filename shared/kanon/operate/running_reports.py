"""Locates the reports of a running stack."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kanon.errors import ConfigurationError
from kanon.reports.job import Amount
from kanon.reports.service.rotation import Epoch
from kanon.reports.settings import AggregateSettings, CollectSettings, DecryptSettings, JobsSettings, RotateSettings
from kanon.reports.storage.budgets import Budgets
from kanon.reports.storage.key_ring import KeyRing
from kanon.reports.storage.report_jobs import ReportJobs

QUEUES = ("Arrivals", "Maps", "Stages")
SCHEDULES = {"aggregate": "SweepSchedule", "rotate": "RotateSchedule"}
"""The schedules by the functions that they call."""
FUNCTIONS = ("collect", "jobs", "decrypt", "aggregate", "rotate")
"""The functions whose settings name all parts."""


class ReportSettingsError(ConfigurationError):
    """The environment of a function of reports is invalid."""


@dataclass(frozen=True)
class RunningReports:
    """The reports of a running stack.

    Attributes:
        collect, jobs, decrypt, aggregate, rotate: the settings of its functions.
        dead_letters: the URLs of the dead-letter queues, by the queues' names.
        schedules: the physical names of the schedules, by their logical ids; None for one that cannot be read.
        client: a client of a service by its name.
        deployed: whether it is in AWS, rather than on this machine.
    """

    collect: CollectSettings
    jobs: JobsSettings
    decrypt: DecryptSettings
    aggregate: AggregateSettings
    rotate: RotateSettings
    dead_letters: Mapping[str, str]
    schedules: Mapping[str, str | None]
    client: Callable[[str], Any]
    deployed: bool = True

    @classmethod
    def of(
        cls,
        environments: Mapping[str, Mapping[str, str]],
        dead_letters: Mapping[str, str],
        schedules: Mapping[str, str | None],
        client: Callable[[str], Any],
    ) -> "RunningReports":
        """From the environments of its functions, by their names.

        Raises:
            ReportSettingsError: the environment of a function is invalid.
            KeyError: a function is missing.
        """
        try:
            return cls(
                CollectSettings.from_environment(environments["collect"]),
                JobsSettings.from_environment(environments["jobs"]),
                DecryptSettings.from_environment(environments["decrypt"]),
                AggregateSettings.from_environment(environments["aggregate"]),
                RotateSettings.from_environment(environments["rotate"]),
                dead_letters,
                schedules,
                client,
            )
        except ConfigurationError as error:
            raise ReportSettingsError(str(error)) from error

    @property
    def tables(self) -> dict[str, str]:
        """The names of the two tables."""
        return {"ReportJobs": self.aggregate.report_jobs_table, "Budgets": self.aggregate.budgets_table}

    @property
    def report_jobs(self) -> ReportJobs:
        """The jobs."""
        return ReportJobs(self.client("dynamodb"), self.aggregate.report_jobs_table)

    @property
    def budgets(self) -> Budgets:
        """The budgets."""
        cap = Amount.of(self.aggregate.epsilon_cap, self.aggregate.delta_cap)
        return Budgets(self.client("dynamodb"), self.aggregate.budgets_table, cap)

    @property
    def key_ring(self) -> KeyRing:
        """The keys."""
        return KeyRing(self.client("dynamodb"), self.aggregate.control_table)

    @property
    def epoch(self) -> Epoch:
        """The epoch of keys and budget table."""
        return Epoch(self.client("dynamodb"), self.key_ring, self.budgets, self.aggregate.report_jobs_table)
