"""``make release``: source distribution, wheel and the layer's zip, in ``dist/``, the same bytes every time.

The commit decides them: files have the time of the last commit, archives are in the order of names. The digests are
printed; a second run gives the same.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from kanon import __version__

ROOT = Path(__file__).resolve().parents[1]
FILE_MODE = 0o644 << 16
SKIPPED = {"__pycache__"}


def main(arguments: list[str] | None = None) -> int:
    """Build all three and print their digests."""
    parser = argparse.ArgumentParser(prog="python -m infra.distribution", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="output folder")
    parser.add_argument("--layer", type=Path, required=True, help="the built layer, as `make build` leaves it")
    asked = parser.parse_args(arguments)
    moment = commit_time()
    asked.out.mkdir(parents=True, exist_ok=True)
    for path in (*distributions(asked.out, moment), layer(asked.layer, asked.out, moment)):
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
    return 0


def commit_time() -> int:
    """The time of the last commit, Unix seconds; SOURCE_DATE_EPOCH if there is no repository."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def distributions(out: Path, moment: int) -> list[Path]:
    """The source distribution and the wheel."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(moment)}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out), "-t", "sdist", "-t", "wheel"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    names = (f"kanon_dp-{__version__}.tar.gz", f"kanon_dp-{__version__}-py3-none-any.whl")
    return [out / name for name in names]


def layer(built: Path, out: Path, moment: int) -> Path:
    """The layer's folder as a zip: entries by name, one time and one mode, no caches."""
    at = out / f"kanon-{__version__}-layer.zip"
    stamp = datetime.fromtimestamp(moment, UTC).timetuple()[:6]
    found = (path for path in built.rglob("*") if path.is_file() and not SKIPPED & set(path.parts))
    files = sorted(found, key=lambda path: path.relative_to(built).as_posix())
    if not files:
        raise SystemExit(f"{built} has no layer: run `make build` first")
    with zipfile.ZipFile(at, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            entry = zipfile.ZipInfo(path.relative_to(built).as_posix(), stamp)
            entry.external_attr, entry.compress_type = FILE_MODE, zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return at


if __name__ == "__main__":
    sys.exit(main())
