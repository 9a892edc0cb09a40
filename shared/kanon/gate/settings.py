"""The environment of each function as a typed model, checked at cold start."""

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, ValidationInfo, field_validator

from kanon.errors import ConfigurationError
from kanon.gate.types import Type, read_types

Seconds = Annotated[int, Field(ge=0, le=366 * 86_400)]


class FunctionSettings(BaseModel):
    """What every function is told. A field ``period`` is read from ``KANON_PERIOD``."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    types: str
    period: Annotated[int, Field(ge=1, le=86_400)]
    slots: Annotated[int, Field(ge=1, le=256)]
    deployment: Annotated[str, Field(min_length=1)]
    control_table: str

    @field_validator("slots")
    @classmethod
    def _power_of_two(cls, slots: int) -> int:
        if slots & (slots - 1):
            raise ValueError("the number of slots must be a power of two")
        return slots

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the settings.

        Raises:
            ConfigurationError: names every variable that is missing or wrong.
        """
        values = {name: environment[f"KANON_{name.upper()}"] for name in cls.model_fields if _name(name) in environment}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problems = (f"{_name(str(e['loc'][0]))}: {e['msg']}" for e in error.errors())
            raise ConfigurationError("; ".join(problems)) from error

    def read_types(self) -> dict[str, Type]:
        """The types of this deployment by name."""
        return read_types(self.types, self.period)


class JoinSettings(FunctionSettings):
    """The environment of ``join``."""

    step_log_table: str
    set_pepper_secret: str
    client_key_secret: str
    outage_allowance: Seconds


class QuerySettings(FunctionSettings):
    """The environment of ``query``."""

    statuses_table: str
    set_pepper_secret: str
    publish_delay: Seconds


class NoiseKeyEntry(BaseModel):
    """From which step on instances begin under a noise key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
    from_step: Annotated[StrictInt, Field(ge=0)]


class EvaluateSettings(FunctionSettings):
    """The environment of ``evaluate``."""

    step_log_table: str
    members_table: str
    statuses_table: str
    noise_key_secret: str
    noise_keys: tuple[NoiseKeyEntry, ...]
    queue_url: str
    outage_allowance: Seconds
    grace: Seconds
    lease: Seconds
    publish_delay: Seconds
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


def _name(field: str) -> str:
    return f"KANON_{field.upper()}"
