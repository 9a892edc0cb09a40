"""Pictures: the one way to open a figure and to save it. Nothing of a screen or of an earlier picture takes part."""

from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
YELLOW, SKY, TEXT = "#E69F00", "#56B4E9", "#333333"
"""Okabe and Ito's colours, which people with any colour vision tell apart."""


def panels(rows: int, columns: int, size: tuple[float, float], *, layout: Any = None, **shared: Any) -> tuple[Any, Any]:
    """A figure of ``size`` inches, and its panels, (rows, columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout=layout)
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def saved(figure: "Figure", form: Literal["png", "svg"] = "png") -> bytes:
    """The figure as a file that changes only if the picture does: without date, version and random names."""
    from matplotlib import rc_context

    out = BytesIO()
    without = {"png": {"Software": None}, "svg": {"Date": None}}
    with rc_context({"svg.hashsalt": "kanon"}):
        figure.savefig(out, format=form, dpi=130, metadata=without[form])
    return out.getvalue()
