"""`make release` gives the same bytes every time, with the right contents."""

import hashlib
import tarfile
import zipfile
from pathlib import Path

import pytest

from infra.distribution import main
from kanon import __version__

pytestmark = pytest.mark.build


def built(layer: Path, out: Path) -> dict[str, str]:
    assert main(["--layer", str(layer), "--out", str(out)]) == 0
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())}


def test_two_releases_of_one_commit_are_the_same_bytes(aws_build: Path, tmp_path: Path) -> None:
    layer = aws_build / "Shared"
    first = built(layer, tmp_path / "1")
    for path in layer.rglob("*.py"):
        path.touch()  # a build at another time
    assert built(layer, tmp_path / "2") == first
    assert list(first) == [
        f"kanon-{__version__}-layer.zip",
        f"kanon_dp-{__version__}-py3-none-any.whl",
        f"kanon_dp-{__version__}.tar.gz",
    ]


def test_the_release_holds_the_program_the_template_and_the_layer(aws_build: Path, tmp_path: Path) -> None:
    built(aws_build / "Shared", tmp_path)
    with zipfile.ZipFile(tmp_path / f"kanon-{__version__}-layer.zip") as archive:
        names = archive.namelist()
    assert names == sorted(names)
    assert "python/kanon/gate/joining.py" in names
    with zipfile.ZipFile(tmp_path / f"kanon_dp-{__version__}-py3-none-any.whl") as archive:
        assert "kanon/local/source/template.yaml" in archive.namelist()
    with tarfile.open(tmp_path / f"kanon_dp-{__version__}.tar.gz") as archive:
        assert {
            f"kanon_dp-{__version__}/{name}.yaml" for name in ("template", "infra/reports", "infra/anonymous")
        } <= set(archive.getnames())


def test_a_folder_without_a_layer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="run `make build` first"):
        main(["--layer", str(tmp_path / "empty"), "--out", str(tmp_path / "dist")])
