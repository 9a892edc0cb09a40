"""The types of a deployment: one JSON document, validated when a function starts.

    {"fledge": {"k": 50, "window": 720, "profile": "crossing"}}

Each type has a threshold ``k`` (clients), a ``window`` (steps) and either a ``profile`` or its own noise
distributions (``laws``, as ``kanon plan --json`` prints them); ``client_bits`` and ``phase`` are optional. ``restart``
is ``grid`` unless the profile or the type says ``crossing``; then it has a ``hold`` and an ``epoch`` (steps). Joins of
a ``listed`` type carry their value, and the values that the crowd shares are published. Joins of a type with
``credential`` name no client: an anonymous credential counts a person once (experimental).
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, ValidationError, model_validator

from kanon import strict_json
from kanon.errors import ConfigurationError, reason
from kanon.gate.mechanism.parameters import CrossingRestart, Parameters, profile, profile_restart
from kanon.gate.mechanism.steps import PhaseRule
from kanon.noise.laws import SHAPES, Law, Shape
from kanon.settings import Strict

TYPE_NAME = r"^[a-z0-9][a-z0-9_-]{0,63}$"


class LawConfiguration(Strict):
    """One noise distribution; ``epsilon`` is a decimal, preferably written as a string."""

    shape: Shape
    epsilon: Annotated[Decimal, Field(gt=0, le=20, max_digits=12)]
    truncation: Annotated[StrictInt, Field(ge=1, le=10_000)]

    def law(self) -> Law:
        """The table."""
        return SHAPES[self.shape](Fraction(self.epsilon), self.truncation)


class LawsConfiguration(Strict):
    """The two noise distributions of a type."""

    threshold: LawConfiguration
    query: LawConfiguration


class TypeConfiguration(Strict):
    """One entry of the document."""

    k: Annotated[StrictInt, Field(ge=1, le=1_000_000)]
    window: Annotated[StrictInt, Field(ge=2, le=65_535)]
    profile: str | None = None
    laws: LawsConfiguration | None = None
    client_bits: Annotated[StrictInt, Field(ge=8, le=32)] = 16
    phase: PhaseRule = "hash"
    restart: Literal["grid", "crossing"] | None = None
    hold: StrictInt | None = None
    epoch: StrictInt | None = None
    listed: StrictBool = False
    credential: StrictBool = False

    @model_validator(mode="after")
    def _one_source_of_laws(self) -> "TypeConfiguration":
        if (self.profile is None) == (self.laws is None):
            raise ValueError("give either a profile or laws")
        return self

    def _restart(self, period: int) -> CrossingRestart | None:
        """The restart: that of the profile, unless the type says which. A type on a grid has neither hold nor epoch."""
        usual = None if self.profile is None else profile_restart(self.profile, self.window, period)
        if self.restart == "grid" and usual is not None:
            raise ValueError(
                f"profile {self.profile!r} is for restart 'crossing': leave out restart, or choose another"
            )
        if self.restart != "crossing" and usual is None:
            if (self.hold, self.epoch) != (None, None):
                raise ValueError("hold and epoch are for restart 'crossing'")
            return None
        hold, epoch = (self.window, None) if usual is None else (usual.hold, usual.epoch)
        epoch = epoch if self.epoch is None else self.epoch
        if epoch is None:
            raise ValueError("restart 'crossing' without a profile for it needs an epoch (steps)")
        return CrossingRestart(hold if self.hold is None else self.hold, epoch)

    def parameters(self, period: int) -> Parameters:
        """The constants of the type at a period of ``period`` seconds."""
        if self.laws is not None:
            threshold_law, query_law = self.laws.threshold.law(), self.laws.query.law()
        else:
            threshold_law, query_law = profile(str(self.profile), self.window, period)
        return Parameters(
            self.k, self.window, period, threshold_law, query_law, self.client_bits, self.phase, self._restart(period)
        )


@dataclass(frozen=True)
class Type:
    """A type in use: its name, its constants, and the name of its profile if it has one.

    ``listed`` and ``credential`` say whether its joins carry a value, and whether they need a credential.
    """

    name: str
    parameters: Parameters
    profile: str | None
    listed: bool = False
    credential: bool = False

    @property
    def fingerprint(self) -> str:
        """Of what never changes."""
        more = (" listed" if self.listed else "") + (" credential" if self.credential else "")
        return self.parameters.fingerprint.hex() + more


def read_types(document: str, period: int) -> dict[str, Type]:
    """The types of a document by name.

    Raises:
        ConfigurationError: the document is invalid; the message says what is wrong and where.
    """
    try:
        entries = strict_json.parse(document)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the type document is not valid JSON: {error}") from error
    if not isinstance(entries, dict) or not entries:
        raise ConfigurationError("the type document must be a JSON object with at least one type")
    return {name: _read_type(name, entry, period) for name, entry in entries.items()}


def _read_type(name: str, entry: Any, period: int) -> Type:
    if not re.fullmatch(TYPE_NAME, name):
        raise ConfigurationError(f"type name {name!r} must match {TYPE_NAME}")
    try:
        configuration = TypeConfiguration.model_validate(entry)
        parameters = configuration.parameters(period)
        return Type(name, parameters, configuration.profile, configuration.listed, configuration.credential)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"type {name!r}{': ' + where if where else ''}: {reason(first)}") from error
    except ValueError as error:
        raise ConfigurationError(f"type {name!r}: {error}") from error
