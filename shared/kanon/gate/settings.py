"""The settings of the gate's functions, combined from small models."""

import json
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, ValidationInfo, field_validator

from kanon.errors import ConfigurationError
from kanon.gate.slots import MOST_PARTITIONS, MOST_SLOTS, Layout, Layouts
from kanon.gate.types import Type, read_types
from kanon.settings import Deployment, Edge, Seconds, Settings, Strict


def _from_json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except RecursionError as error:
        raise ValueError("the list is nested too deeply") from error


def _some(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    if not entries:
        raise ValueError("list at least one entry")
    return entries


def _in_order(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    steps = [entry.from_step for entry in entries]
    if steps != sorted(set(steps)):
        raise ValueError("list the entries in the order of from_step, each step once")
    return entries


FromJson = BeforeValidator(_from_json)
Some, InOrder = AfterValidator(_some), AfterValidator(_in_order)


class SlotsEntry(Strict):
    """A number of slots, that of the partitions of each (None: the first form of the log), and their first step."""

    slots: Annotated[StrictInt, Field(ge=1, le=MOST_SLOTS)]
    partitions: Annotated[StrictInt, Field(ge=1, le=MOST_PARTITIONS)] | None = None
    from_step: Annotated[StrictInt, Field(ge=0)]

    @field_validator("slots", "partitions")
    @classmethod
    def _power_of_two(cls, number: int | None, info: ValidationInfo) -> int | None:
        if number is not None and number & (number - 1):
            raise ValueError(f"the number of {info.field_name} must be a power of two")
        return number


def _one_entry(given: Any) -> Any:
    """A number alone is a list of one entry."""
    return [{"slots": given, "from_step": 0}] if isinstance(given, int) else given


class GateSettings(Deployment):
    """The settings of all functions of the gate."""

    types: str
    period: Annotated[int, Field(ge=1, le=86_400)]
    slots: Annotated[tuple[SlotsEntry, ...], Some, InOrder, BeforeValidator(_one_entry), FromJson]

    @property
    def layouts(self) -> Layouts:
        """The numbers of slots by the step from which they are in force."""
        return Layouts(tuple(Layout(entry.slots, entry.from_step, entry.partitions) for entry in self.slots))

    def read_types(self) -> dict[str, Type]:
        """The types of this deployment by name."""
        return read_types(self.types, self.period)


class LogWriter(Settings):
    """The log, and the seconds for which a row is needed after its step."""

    step_log_table: str
    outage_allowance: Seconds


class Ticks(GateSettings):
    """Shared by the functions that know ticks: ``publish_delay`` is from the end of a step to its tick."""

    publish_delay: Seconds


class AnswerSettings(Ticks):
    """Shared by the functions that make or give answers.

    With restart after the crossing, answers are refused ``max_stale`` steps after the visible step, or after a window
    if that is shorter.
    """

    statuses_table: str
    max_stale: Annotated[int, Field(ge=1, le=65_535)]

    def read_types(self) -> dict[str, Type]:
        """The types of this deployment by name.

        Raises:
            ConfigurationError: a window is shorter than the publish delay. Statuses keep two crossings, and a third one
                could be evaluated before the first one stops to count.
        """
        types = super().read_types()
        for type_ in types.values():
            if type_.parameters.window * self.period < self.publish_delay:
                raise ConfigurationError(
                    f"type {type_.name!r}: a window of {type_.parameters.window} steps is shorter than the publish"
                    f" delay of {self.publish_delay} s; raise the window or lower PublishDelay"
                )
        return types


class JoinSettings(GateSettings, Edge, LogWriter):
    """The environment of ``join``.

    ``lister_key`` is a public key in base64url, ``issuer_key_secret`` an ARN; each is empty if no type needs it.
    """

    set_pepper_secret: str
    client_key_secret: str
    lister_key: Annotated[str, Field(pattern=r"^([A-Za-z0-9_-]{43})?$")]
    issuer_key_secret: str

    def read_types(self) -> dict[str, Type]:
        """The types of this deployment by name.

        Raises:
            ConfigurationError: one needs a credential, and there is no issuer; or one is listed, and there is no key to
                which its values could be sealed.
        """
        types = super().read_types()
        for name, type_ in types.items():
            if type_.credential and not self.issuer_key_secret:
                raise ConfigurationError(
                    f"type {name!r} needs credentials, which nobody issues: run `kanon operate issuer-key`, and deploy"
                    f" with IssuerKeySecret as it prints it"
                )
            if type_.listed and not self.lister_key:
                raise ConfigurationError(
                    f"type {name!r} is listed, but nobody could open its values: run `kanon operate lister-key`, and"
                    f" deploy with ListerKey and ListerKeySecret as it prints them"
                )
        return types


class QuerySettings(AnswerSettings, Edge):
    """The environment of ``query``. A query without a signature may name ``anonymous_hashes`` hashes."""

    states_bucket: str
    set_pepper_secret: str
    anonymous_hashes: Annotated[int, Field(ge=1, le=1_000)]


class NoiseKeyEntry(Strict):
    """A noise key, and the step from which new searches use it."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
    from_step: Annotated[StrictInt, Field(ge=0)]


class LogGenerationEntry(Strict):
    """A later log: the id of its table (``TableId``), and the step from which it is in use."""

    log: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,255}$")]
    from_step: Annotated[StrictInt, Field(ge=1)]


class StatesSettings(GateSettings):
    """Shared by the functions that use the bucket of states."""

    states_bucket: str
    publish_margin: Seconds


class EvaluateSettings(AnswerSettings, LogWriter, StatesSettings):
    """The environment of ``evaluate``."""

    noise_key_secret: str
    noise_keys: Annotated[tuple[NoiseKeyEntry, ...], Some, InOrder, FromJson]
    log_generations: Annotated[tuple[LogGenerationEntry, ...], InOrder, FromJson]
    queue_url: str
    grace: Seconds
    lease: Seconds

    @field_validator("publish_margin")
    @classmethod
    def _at_most_a_period(cls, margin: int, info: ValidationInfo) -> int:
        """A horizon stores three steps; with a longer margin, more than three could be needed."""
        if margin > info.data.get("period", margin):
            raise ValueError("the publish margin must not be longer than the period")
        return margin

    def read_types(self) -> dict[str, Type]:
        """The types of this deployment by name.

        Raises:
            ConfigurationError: a reader whose answers are not too old could need a crossing that is no longer kept.
        """
        types = super().read_types()
        ahead = -(-(self.publish_delay + self.publish_margin - self.grace) // self.period)
        for type_ in types.values():
            restart, stale = type_.parameters.restart, type_.parameters.stale_after(self.max_stale)
            # The last closed step is at most ``ahead`` steps after the clock step of a reader, and that is less than
            # ``stale`` steps after the visible step s. No third crossing follows s within one hold.
            if restart is not None and stale is not None and stale - 1 + ahead > restart.hold:
                raise ConfigurationError(
                    f"type {type_.name!r}: a hold of {restart.hold} steps is too short for MaxStale {self.max_stale}"
                    f" and PublishDelay {self.publish_delay}; use a new type name with a longer hold, or lower MaxStale"
                    f" if it was never deployed with such a type"
                )
        return types

    @property
    def layouts(self) -> Layouts:
        """The layouts. Evaluation may be late by the outage allowance, and joins until then know no newer one."""
        return replace(super().layouts, late=self.outage_allowance // self.period)

    @property
    def tables(self) -> dict[str, str]:
        """The names of the three tables by their logical name."""
        return {
            "StepLog": self.step_log_table,
            "Statuses": self.statuses_table,
            "Control": self.control_table,
        }

    @field_validator("noise_keys")
    @classmethod
    def _each_once(cls, entries: tuple[NoiseKeyEntry, ...]) -> tuple[NoiseKeyEntry, ...]:
        if len({entry.id for entry in entries}) != len(entries):
            raise ValueError("list each noise key once")
        return entries


class ListedTypes(Ticks):
    """Shared by the functions of lists. They see listed types alone in ``listed``."""

    list_bucket: str

    @property
    def listed(self) -> dict[str, Type]:
        """The listed types by name."""
        return {name: type_ for name, type_ in self.read_types().items() if type_.listed}


class ListSettings(ListedTypes):
    """The environment of ``list``. A value is listed ``review_steps`` steps after it turned true.

    ``lister_key`` is the public key to which ``join`` seals, that of ``lister_key_secret``.
    """

    statuses_table: str
    states_bucket: str
    lister_key: str
    lister_key_secret: str
    review_steps: Annotated[int, Field(ge=0, le=65_535)]

    def read_types(self) -> dict[str, Type]:
        """The types of this deployment by name.

        Raises:
            ConfigurationError: the review of a listed type is longer than its window.
        """
        types = super().read_types()
        for type_ in types.values():
            if type_.listed and self.review_steps > type_.parameters.window:
                raise ConfigurationError(
                    f"type {type_.name!r}: a review of {self.review_steps} steps must not be longer than its window of"
                    f" {type_.parameters.window} steps: lower ReviewSteps"
                )
        return types


class ReleasedSettings(ListedTypes, Edge):
    """The environment of ``released``. With ``list_auth`` NONE caches of everybody may keep lists."""

    list_auth: Literal["IAM", "JWT", "NONE"]
