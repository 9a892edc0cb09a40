"""The environment of the gate's functions, composed of small models."""

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationInfo, field_validator

from kanon.gate.types import Type, read_types
from kanon.settings import Deployment, Seconds, Settings


class GateSettings(Deployment):
    """What every function of the gate is told."""

    types: str
    period: Annotated[int, Field(ge=1, le=86_400)]
    slots: Annotated[int, Field(ge=1, le=256)]

    @field_validator("slots")
    @classmethod
    def _power_of_two(cls, slots: int) -> int:
        if slots & (slots - 1):
            raise ValueError("the number of slots must be a power of two")
        return slots

    def read_types(self) -> dict[str, Type]:
        """The types of this deployment by name."""
        return read_types(self.types, self.period)


class SetPepper(Settings):
    """Where the key is that names sets."""

    set_pepper_secret: str


class LogWriter(Settings):
    """Where the log is, and for how many seconds after its step a row is needed."""

    step_log_table: str
    outage_allowance: Seconds


class StatusTable(Settings):
    """Where the statuses are, and how many seconds after a step's end they become visible."""

    statuses_table: str
    publish_delay: Seconds


class JoinSettings(GateSettings, SetPepper, LogWriter):
    """The environment of ``join``."""

    client_key_secret: str


class QuerySettings(GateSettings, SetPepper, StatusTable):
    """The environment of ``query``."""


class NoiseKeyEntry(BaseModel):
    """From which step on instances begin under a noise key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
    from_step: Annotated[StrictInt, Field(ge=0)]


class EvaluateSettings(GateSettings, LogWriter, StatusTable):
    """The environment of ``evaluate``."""

    members_table: str
    noise_key_secret: str
    noise_keys: tuple[NoiseKeyEntry, ...]
    queue_url: str
    grace: Seconds
    lease: Seconds
    publish_margin: Seconds

    @field_validator("publish_margin")
    @classmethod
    def _at_most_a_period(cls, margin: int, info: ValidationInfo) -> int:
        """A horizon remembers what is seen at its last ticks; a longer margin would leave more of them pending."""
        if margin > info.data.get("period", margin):
            raise ValueError("the publish margin must not be longer than the period")
        return margin

    @field_validator("noise_keys", mode="before")
    @classmethod
    def _from_json(cls, text: Any) -> Any:
        try:
            return json.loads(text) if isinstance(text, str) else text
        except RecursionError as error:
            raise ValueError("the list of noise keys is nested too deeply") from error

    @field_validator("noise_keys")
    @classmethod
    def _ordered(cls, entries: tuple[NoiseKeyEntry, ...]) -> tuple[NoiseKeyEntry, ...]:
        steps = [entry.from_step for entry in entries]
        if not entries or steps != sorted(set(steps)) or len({entry.id for entry in entries}) != len(entries):
            raise ValueError("list each noise key once, in the order of its from_step, at least one")
        return entries
