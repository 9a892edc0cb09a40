"""Fingerprints of the immutable values of a deployment, compared with Control when a function starts (rule 7)."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from kanon.dynamo.fingerprints import DEPLOYMENT
from kanon.errors import ConfigurationError
from kanon.gate.generations import Ids, RecordedFingerprints, as_recorded, recorded_generations, refuse_log_generations
from kanon.gate.settings import AnswerSettings, EvaluateSettings, GateSettings, JoinSettings, NoiseKeyEntry
from kanon.gate.slots import Layouts
from kanon.gate.storage.aws.control import Control
from kanon.gate.types import Type
from kanon.keys import Secret
from kanon.noise.words import NoiseKey

NOISE_KEY, TYPE, RETIRED, SLOTS = "noise-key ", "type ", "retired ", "slots"
FORGETTING = "forgetting"
"""The name under which a command records the tokens that it replaces, until they are replaced everywhere."""
STEPS_AHEAD = 2
"""A new layout begins at least this many steps after the current one, so that every function knows it in time."""


def fingerprints(settings: GateSettings, types: Mapping[str, Type], keys: Iterable[Secret]) -> dict[str, str]:
    """The fingerprints of a function's settings, types and keys, by the name of an attribute in Control.

    A function that writes rows includes the outage allowance. It fixes the expiry of a row when the row is written, so
    evaluation with a longer allowance would rely on rows that have expired. A function that decides when answers
    change includes the publish delay: a longer delay would take back answers that were already given; and the age up to
    which answers are given, once a type uses it: crossings are kept for it. ``join`` includes the public key of the
    lister, who opens nothing that is sealed to another one.
    """
    values = {**slot_fingerprints(settings.layouts), DEPLOYMENT: settings.deployment}
    if isinstance(settings, JoinSettings | EvaluateSettings):
        values["outage-allowance"] = str(settings.outage_allowance)
    if isinstance(settings, JoinSettings) and any(type_.listed for type_ in types.values()):
        values["lister-key"] = settings.lister_key
    if isinstance(settings, AnswerSettings):
        values["publish-delay"] = str(settings.publish_delay)
        if any(type_.parameters.restart is not None for type_ in types.values()):
            values["max-stale"] = str(settings.max_stale)
    return {
        **values,
        **{f"{TYPE}{name}": type_.fingerprint for name, type_ in types.items()},
        **{f"key {key.name}": key.fingerprint for key in keys},
    }


def slot_fingerprints(layouts: Layouts) -> dict[str, str]:
    """The fingerprint of each layout."""
    return {_slots(layout.from_step): str(layout) for layout in layouts.entries}


def layouts_soon(layouts: Layouts, step: int) -> list[str]:
    """The fingerprints of the later layouts that are in force soon after ``step``: too late to begin them."""
    return [_slots(layout.from_step) for layout in layouts.entries if 0 < layout.from_step < step + STEPS_AHEAD]


def missing_layouts(recorded: RecordedFingerprints, layouts: Layouts) -> dict[int, str]:
    """The recorded layouts that are not configured, by their first step, except those older than all others.

    A deployment that added them was rolled back.
    """
    known = {int(name.partition(" ")[2] or 0): text for name, text in recorded.items() if _is_slots(name)}
    configured = [layout.from_step for layout in layouts.entries]
    return {step: known[step] for step in sorted(known) if step >= configured[0] and step not in configured}


def missing_layout(from_step: int) -> ConfigurationError:
    """The error of a function that lacks a recorded layout."""
    return ConfigurationError(
        f"the entry of Slots that begins at step {from_step} is missing: put it back; only entries older than all"
        f" others may be removed"
    )


def has_removed_layouts(recorded: RecordedFingerprints, layouts: Layouts) -> bool:
    """Whether a recorded layout is older than all that are configured."""
    return any(int(name.partition(" ")[2] or 0) < layouts.entries[0].from_step for name in filter(_is_slots, recorded))


def removed_layout(from_step: int) -> ConfigurationError:
    """The error of a function that lacks the layout from which another one continues."""
    return ConfigurationError(
        f"the slots that begin at step {from_step} continue those of an entry that was removed from Slots: put it back"
    )


def refuse_slots(
    recorded: RecordedFingerprints, layouts: Layouts, step: int, by_join: Callable[[], Mapping[str, str]]
) -> None:
    """Check that a new layout begins at least two steps after ``step``, and that none is added while one is missing.

    Joins under a layout that the other functions do not know would be lost. ``join`` records no layout too late, so
    one that it has recorded is in force, even if ``evaluate`` did not start in time. ``by_join`` reads its records.

    Raises:
        ConfigurationError: a new layout begins too early, or is added while :func:`missing_layouts` has one.
    """
    known = set(filter(_is_slots, recorded))
    missing = missing_layouts(recorded, layouts)
    if missing and not slot_fingerprints(layouts).keys() <= known:
        raise missing_layout(min(missing))
    late = [name for name in layouts_soon(layouts, step) if known and name not in known]
    if late and not set(late) <= by_join().keys():
        raise ConfigurationError(
            f"the entry of Slots that begins at step {late[0].partition(' ')[2]} is new: let it begin at step"
            f" {step + STEPS_AHEAD} or later"
        )


def check_join(
    control: Control, settings: JoinSettings, types: Mapping[str, Type], keys: Iterable[Secret], step: int
) -> None:
    """Compare the immutable values of ``join`` at ``step`` with those recorded, and record new ones.

    Raises:
        FingerprintMismatchError: a recorded fingerprint has changed, or a new layout begins too early.
    """
    control.check("join", fingerprints(settings, types, keys), old=layouts_soon(settings.layouts, step))


def _is_slots(name: str) -> bool:
    return name.partition(" ")[0] == SLOTS


def _slots(from_step: int) -> str:
    """The name of a layout's fingerprint. The first layout keeps the name from versions with one layout."""
    return f"{SLOTS} {from_step}" if from_step else SLOTS


def noise_key_fingerprints(entries: Sequence[NoiseKeyEntry], keys: Mapping[str, NoiseKey]) -> dict[str, str]:
    """The fingerprint of each noise key with its first step."""
    return {f"{NOISE_KEY}{entry.id}": f"{_secret(keys[entry.id]).fingerprint} {entry.from_step}" for entry in entries}


def unchanged_keys(
    recorded: RecordedFingerprints, entries: Sequence[NoiseKeyEntry], keys: Mapping[str, NoiseKey]
) -> dict[str, NoiseKey]:
    """The keys of these entries, as far as ``keys`` has them as they were recorded."""
    found = [entry for entry in entries if entry.id in keys]
    current = noise_key_fingerprints(found, keys)
    return {
        entry.id: keys[entry.id]
        for entry in found
        if recorded[f"{NOISE_KEY}{entry.id}"] == current[f"{NOISE_KEY}{entry.id}"]
    }


def from_step_recorded(fingerprint: str) -> int:
    """The step from which new searches use a recorded noise key."""
    return int(fingerprint.rpartition(" ")[2])


def retire(control: Control, type_name: str) -> None:
    """Retire a type permanently: evaluation continues without it, and no other type may have its name."""
    control.check("evaluate", {f"{RETIRED}{type_name}": "for good"})


def refuse_types(recorded: RecordedFingerprints, types: Mapping[str, Type]) -> None:
    """Check that every missing type was retired, and that no retired type is back.

    The wake-ups of a retired type are skipped. If it came back, a set would next be evaluated when a client joins it,
    and its answer could reveal that one join.

    Raises:
        ConfigurationError: a type is missing, or a retired one is back.
    """
    retired_types = recorded_names(recorded, RETIRED)
    for name in sorted({*recorded_names(recorded, TYPE), *retired_types}):
        retired = name in retired_types
        if name in types and retired:
            raise ConfigurationError(f"type {name!r} was retired permanently: give the new type another name")
        if name not in types and not retired:
            raise ConfigurationError(
                f"type {name!r} is no longer configured: put it back, or retire it permanently with"
                f" `kanon operate retire {name}`"
            )


def refuse_forgetting(recorded: RecordedFingerprints) -> None:
    """Check that no client is forgotten in a part of the states and joins only: it would count twice.

    Raises:
        ConfigurationError: one is.
    """
    if FORGETTING in recorded:
        raise ConfigurationError(
            "a client is not forgotten everywhere yet: wait until `kanon operate forget` ends; if it was interrupted,"
            " run it again"
        )


def recorded_names(recorded: RecordedFingerprints, kind: str) -> set[str]:
    """The names recorded with the prefix ``kind``: TYPE, RETIRED or NOISE_KEY."""
    return {name.removeprefix(kind) for name in recorded if name.startswith(kind)}


def missing_noise_keys(recorded: RecordedFingerprints, entries: Sequence[NoiseKeyEntry]) -> list[NoiseKeyEntry]:
    """The recorded noise keys that are not configured, oldest first, except those older than all others.

    A deployment that added them was rolled back. They stay in force. ``entries`` are oldest first.
    """
    known = {name.removeprefix(NOISE_KEY): value for name, value in recorded.items() if name.startswith(NOISE_KEY)}
    configured = {entry.id for entry in entries}
    newer = [NoiseKeyEntry(id=name, from_step=from_step_recorded(known[name])) for name in known.keys() - configured]
    return sorted((each for each in newer if each.from_step >= entries[0].from_step), key=lambda each: each.from_step)


def refuse_noise_keys(
    recorded: RecordedFingerprints, entries: Sequence[NoiseKeyEntry], types: Mapping[str, Type], step: int
) -> None:
    """Check that new noise keys begin at least two windows after ``step``, and none is added while one is missing.

    Then no search that has begun, or that a look-ahead has decided, changes its key. ``entries`` are oldest first.

    Raises:
        ConfigurationError: a new entry begins too early, or is added while :func:`missing_noise_keys` has one.
    """
    known = recorded_names(recorded, NOISE_KEY)
    missing = missing_noise_keys(recorded, entries)
    if missing and not {entry.id for entry in entries} <= known:
        raise ConfigurationError(
            f"{NOISE_KEY}{missing[0].id} begins at step {missing[0].from_step} and is missing: put it back; only keys"
            f" older than all others may be removed"
        )
    earliest = step + 2 * max(t.parameters.window for t in types.values())
    for entry in entries:
        if known and entry.id not in known and entry.from_step < earliest:
            raise ConfigurationError(
                f"noise key {entry.id} begins at step {entry.from_step}: a new key must begin at step {earliest} or"
                f" later (now plus two windows)"
            )


def refuse_without_key(
    recorded: RecordedFingerprints,
    entries: Sequence[NoiseKeyEntry],
    types: Mapping[str, Type],
    step: int,
    late: int = 0,
) -> None:
    """Refuse a new type whose first search may begin before the oldest noise key: its first step would never be done.

    Args:
        recorded: the recorded fingerprints.
        entries: the noise keys, oldest first.
        types: the types by name.
        step: the current step.
        late: so many steps before it may have joins of a new type.

    Raises:
        ConfigurationError: there is one.
    """
    oldest = entries[0].from_step
    for name in sorted(types.keys() - recorded_names(recorded, TYPE)):
        first = oldest + types[name].parameters.cycle + late
        if oldest and step < first:
            raise ConfigurationError(
                f"type {name!r} cannot be added before step {first}: a search of it might have begun before step"
                f" {oldest}, and the noise key of such searches was removed"
            )


def steps_late(settings: EvaluateSettings) -> int:
    """So many steps before ``evaluate`` starts with a type, ``join`` may have accepted its joins."""
    return -(-settings.outage_allowance // settings.period)


def check_evaluate(
    control: Control,
    settings: EvaluateSettings,
    types: Mapping[str, Type],
    keys: Mapping[str, NoiseKey],
    step: int,
    tables: Ids,
    restored: Sequence[str] = (),
) -> None:
    """Compare the immutable values of ``evaluate`` with those recorded, and record new ones.

    This records the tables of the first generation. The command that begins a later generation records its tables.
    ``restored`` names the tables that were made from a backup.

    Raises:
        ConfigurationError: see :func:`refuse_slots`, :func:`refuse_types`, :func:`refuse_noise_keys`,
            :func:`refuse_without_key` and :func:`refuse_log_generations`.
        FingerprintMismatchError: a recorded fingerprint, or the first step of a noise key, has changed.
    """
    recorded = control.recorded("evaluate")
    refuse_slots(recorded, settings.layouts, step, lambda: control.recorded("join"))
    refuse_without_key(recorded, settings.noise_keys, types, step, steps_late(settings))
    control.check("evaluate", fingerprints(settings, types, ()))
    layouts = slot_fingerprints(settings.layouts)
    if recorded and not layouts.keys() <= recorded.keys():
        control.check("join", layouts)  # join may start for the first time after they begin
    refuse_types(recorded, types)
    refuse_noise_keys(recorded, settings.noise_keys, types, step)
    refuse_log_generations(recorded, settings.log_generations, tables)
    if not recorded_generations(recorded) and restored:
        raise ConfigurationError(
            f"tables made from a backup: {', '.join(restored)}; no log generation is recorded: begin one with"
            f" `kanon operate new-generation`"
        )
    first = {} if recorded_generations(recorded) else as_recorded(0, tables)
    control.check("evaluate", {**noise_key_fingerprints(settings.noise_keys, keys), **first})


def _secret(key: NoiseKey) -> Secret:
    return Secret(f"noise-key/{key.id}", key.secret)
