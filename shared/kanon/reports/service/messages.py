"""Queue messages of jobs: they hold only the job's id and the part of the work."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt


class MapMessage(BaseModel):
    """Map one shard of a job, or map it again without what a manifest leaves out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: Annotated[str, Field(min_length=1, max_length=128)]
    stage: Literal["map", "remap"]
    shard: Annotated[StrictInt, Field(ge=0, lt=1_000)]


class StageMessage(BaseModel):
    """Take a job as far as it goes; ``part`` names a part of the summary to reduce."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: Annotated[str, Field(min_length=1, max_length=128)]
    part: Annotated[StrictInt, Field(ge=0, lt=10_000)] | None = None


Message = MapMessage | StageMessage
