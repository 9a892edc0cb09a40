"""The pictures of the documentation are those that the commands draw."""

from pathlib import Path

import pytest
from matplotlib import image
from typer.testing import CliRunner

from kanon.cli.main import app
from tests.paths import ROOT


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("profiles", ["plan", "--compare", "--plot"]),
        ("figure-1", ["plan", "--paper"]),
        pytest.param("demo", ["demo", "--plot"], marks=pytest.mark.replay),
    ],
)
def test_the_picture_in_the_documentation_is_what_the_command_draws(
    name: str, command: list[str], tmp_path: Path
) -> None:
    drawn = tmp_path / f"{name}.png"
    result = CliRunner().invoke(app, [*command, str(drawn)])
    assert result.exit_code == 0, result.output
    assert same(drawn, ROOT / "docs" / drawn.name), f"docs/{name}.png is old: run `make paper`, or `make demo` and copy"


def same(one: Path, other: Path) -> bool:
    """Whether two pictures show the same. Processors may round the shade of a pixel differently."""
    left, right = image.imread(one), image.imread(other)
    return left.shape == right.shape and float(abs(left - right).max()) < 0.1
