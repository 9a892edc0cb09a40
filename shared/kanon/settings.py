"""The environment variables of a function as a typed model, checked at cold start.

The settings of a function combine small models, one per topic.
"""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kanon.errors import ConfigurationError, meant, reason

Seconds = Annotated[int, Field(ge=0, le=366 * 86_400)]


class Strict(BaseModel):
    """A part of a setting that is JSON. Unknown fields are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        unknown = [name for name in value if name not in cls.model_fields] if isinstance(value, dict) else []
        if unknown:
            known = ", ".join(cls.model_fields)
            raise ValueError(f"there is no field {unknown[0]!r}{meant(unknown[0], cls.model_fields)}: it has {known}")
        return value


class Settings(BaseModel):
    """The settings of a function. The field ``period`` is read from ``KANON_PERIOD``."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the settings.

        Raises:
            ConfigurationError: the message names every variable that is missing or invalid.
        """
        values = {name: environment[_name(name)] for name in cls.model_fields if _name(name) in environment}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problems = (f"{_name(str(e['loc'][0]))}: {reason(e)}" for e in error.errors())
            raise ConfigurationError("; ".join(problems)) from error


class Edge(Settings):
    """The secret that requests must carry if there is an edge; empty if there is none."""

    edge_secret: str


class Deployment(Settings):
    """The name of the deployment, and the table that records its immutable values."""

    deployment: Annotated[str, Field(min_length=1)]
    control_table: str


def _name(field: str) -> str:
    return f"KANON_{field.upper()}"
