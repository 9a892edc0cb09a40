# mypy: ignore-errors
"""The job with OpenDP's Polars engine. Runs in ``.venv-rivals``."""

import warnings
from pathlib import Path

import opendp.prelude as dp
import polars as pl

dp.enable_features("contrib")
warnings.simplefilter("ignore", FutureWarning)
ROWS = 1_000_000
SETS = 100_000
"""Public upper bounds, which OpenDP asks for."""


def release(log: Path) -> int:
    """Release; the number of released sets."""
    bounds = [dp.polars.Bound(by=["set"], per_group=1), dp.polars.Bound(by=["set"], num_groups=10)]
    context = dp.Context.compositor(
        data=pl.read_csv(log, schema_overrides={"set": pl.String, "client": pl.String}).lazy(),
        privacy_unit=dp.unit_of(contributions=bounds, identifier=pl.col("client")),
        privacy_loss=dp.loss_of(epsilon=1.0, delta=1e-6),
        split_evenly_over=1,
        margins=[
            dp.polars.Margin(by=(), max_length=ROWS),
            dp.polars.Margin(by=["set"], max_groups=SETS, max_length=ROWS),
        ],
    )
    query = (
        context.query()
        .truncate_per_group(1, by=["set"], keep="first")
        .truncate_num_groups(10, by=["set"], keep="first")
        .group_by("set")
        .agg(dp.len())
    )
    return int(query.release().collect().height)
