"""Files are refused before the work, with what to change."""

from pathlib import Path

import pytest
from typer import BadParameter

from kanon.cli.files import picture, writable


def test_a_usable_file_is_accepted_and_its_folder_made(tmp_path: Path) -> None:
    picture(tmp_path / "new" / "a.PNG", "--plot")
    assert (tmp_path / "new").is_dir()
    picture(None, "--plot")


def test_a_picture_that_is_not_a_png_is_refused(tmp_path: Path) -> None:
    for name in ("x.txt", "x", "x.svg"):
        with pytest.raises(BadParameter, match="give a name that ends in"):
            picture(tmp_path / name, "--plot")


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "x.png", tmp_path / "folder", Path("/proc/x/y.png"), Path("a\0b/x.png")):
        with pytest.raises(BadParameter, match="cannot be written"):
            writable(path, "--out")
