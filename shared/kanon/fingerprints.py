"""What must never change in a deployment, by name: compared in Control when a function starts (rule 7)."""

from collections.abc import Iterable, Mapping, Sequence

from kanon.errors import ConfigurationError
from kanon.keys import Secret
from kanon.mechanism.tape import NoiseKey
from kanon.settings import NoiseKeyEntry
from kanon.storage.control import Control
from kanon.types import Type


def fingerprints(types: Mapping[str, Type], slots: int, deployment: str, keys: Iterable[Secret]) -> dict[str, str]:
    """The fingerprints of types, slot count, deployment and keys, by the name of an attribute in Control."""
    return {
        "slots": str(slots),
        "deployment": deployment,
        **{f"type {name}": type_.parameters.fingerprint.hex() for name, type_ in types.items()},
        **{f"key {key.name}": key.fingerprint for key in keys},
    }


def check_noise_keys(
    control: Control,
    entries: Sequence[NoiseKeyEntry],
    keys: Mapping[str, NoiseKey],
    types: Mapping[str, Type],
    step: int,
) -> None:
    """Record each noise key with its first step; a new one must lie far enough ahead of ``step``.

    Two windows ahead no instance that has begun, or that a look-ahead has decided, changes its key. For the
    same reason only the oldest entries may be taken away: without a newer one its instances would be drawn again.

    Raises:
        ConfigurationError: a new entry begins too early, or an entry that is not among the oldest is missing.
        FingerprintMismatchError: a known entry has another key or another first step.
    """
    recorded = control.recorded("evaluate")
    configured = {f"noise-key {entry.id}" for entry in entries}
    for known, value in recorded.items():
        start = int(value.split()[-1]) if known.startswith("noise-key ") else None
        if start is not None and known not in configured and start >= entries[0].from_step:
            raise ConfigurationError(
                f"{known} begins at step {start} and is missing: only keys older than all others may be taken away;"
                f" put it back"
            )
    earliest = step + 2 * max(t.parameters.window for t in types.values())
    named = {}
    for entry in entries:
        name = f"noise-key {entry.id}"
        named[name] = f"{Secret(f'noise-key/{entry.id}', keys[entry.id].secret).fingerprint} {entry.from_step}"
        rotating = any(known.startswith("noise-key ") for known in recorded)
        if rotating and name not in recorded and entry.from_step < earliest:
            raise ConfigurationError(
                f"noise key {entry.id} begins at step {entry.from_step}: a new key must begin at step {earliest} or"
                f" later (now plus two windows)"
            )
    control.check("evaluate", named)
