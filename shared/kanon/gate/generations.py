"""Log generations: the tables from which answers derive, and from which step on (docs/architecture.md, rule 1).

Control records the ids of the three tables of each generation, by its first step. The first generation begins at
step 0. The parameter ``LogGenerations`` names the later ones, oldest first, and must agree with Control.
"""

import json
from collections.abc import Mapping, Sequence

from kanon.errors import ConfigurationError
from kanon.gate.mechanism.tape import LogGeneration
from kanon.gate.settings import LogGenerationEntry

TABLES, LOG = "tables ", "StepLog"
COMMAND = "`kanon operate new-generation`"

Ids = Mapping[str, str]
"""The id of each of the three tables by its logical name."""
RecordedFingerprints = Mapping[str, str]
"""The fingerprints recorded for ``evaluate``, by the name of an attribute in Control."""


def as_recorded(from_step: int, ids: Ids) -> dict[str, str]:
    """The record of a generation in Control: an attribute and its text."""
    return {f"{TABLES}{from_step}": json.dumps(ids, sort_keys=True)}


def recorded_generations(recorded: RecordedFingerprints) -> dict[int, Ids]:
    """The tables of each generation by its first step, oldest first."""
    found = {int(name.removeprefix(TABLES)): text for name, text in recorded.items() if name.startswith(TABLES)}
    return {from_step: json.loads(found[from_step]) for from_step in sorted(found)}


def in_force(entries: Sequence[LogGenerationEntry]) -> LogGeneration | None:
    """The newest generation; None if it is the first one. Steps before it are no longer evaluated."""
    return LogGeneration(entries[-1].log, entries[-1].from_step) if entries else None


def replaced_tables(known: Ids, ids: Ids) -> list[str]:
    """The names of the tables that are not those of ``known``."""
    return sorted(name for name in known if ids.get(name) != known[name])


def refuse_log_generations(recorded: RecordedFingerprints, entries: Sequence[LogGenerationEntry], ids: Ids) -> None:
    """Check that the generations configured, oldest first, are the recorded ones. Only the oldest may be left out.

    Raises:
        ConfigurationError: a generation was not started by the command, is missing or has another log, or a table does
            not belong to the newest generation.
    """
    known = recorded_generations(recorded)
    for entry in entries:
        name = f"the log generation that begins at step {entry.from_step}"
        if entry.from_step not in known:
            raise ConfigurationError(f"{name} was not started: run {COMMAND} and deploy what it prints")
        if known[entry.from_step][LOG] != entry.log:
            raise ConfigurationError(f"{name} was started on another log: put its entry back")
    oldest = entries[0].from_step if entries else 1
    listed = {entry.from_step for entry in entries}
    for from_step in known:
        if from_step >= oldest and from_step not in listed:
            raise ConfigurationError(
                f"the log generation that begins at step {from_step} is missing from LogGenerations: put it there"
            )
    if known and (others := replaced_tables(list(known.values())[-1], ids)):
        raise ConfigurationError(
            f"another table is in the place of {' and '.join(others)} (restored or created again): with the same noise"
            f" its answers would reveal what differs; begin a new log generation with {COMMAND}"
        )
