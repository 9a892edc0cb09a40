"""Use case: copy a directory, also beside a running service.

The control file comes first, as SQLite copies it: in one state. Then the parts that its last manifest names, then what
is counted and not evaluated. The service may delete a part meanwhile, when it has evaluated some steps more: then the
copy begins again. The control file gets its name last, so an unfinished copy is no deployment.

Of reports it has budgets, jobs, domains and summaries, and the parts of summaries that are not published yet. It has no
private key and no report: a copy may lack what was spent after it was made, so it must not open them.

Of credentials it has the accounts, copied after the joins: everybody whose joins it has is in them. It has no key of
the issuer, so nothing counts in it that the issuer signs after it.

Of lists it has the history, and the values that were taken out of lists.

A copy has no right to the noise of the original. It is refused until ``kanon operate new-generation`` gives it its own.
"""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from kanon import clock
from kanon.created import flush
from kanon.disk import connect
from kanon.errors import ConfigurationError
from kanon.gate.storage.disk.control import NAME, ControlFile
from kanon.gate.storage.disk.log import SUFFIX
from kanon.gate.storage.disk.parts import PartFiles
from kanon.gate.storage.protocols import Manifest
from kanon.reports.storage import disk as reports
from kanon.serving import arrivals, lists
from kanon.serving.directory import ACCOUNTS, PLACE, existing
from kanon.serving.secret_files import ISSUER_KEY

ATTEMPTS = 5
UNFINISHED = "control.part"
FOLDERS = ("parts", "log", "secrets")


class _MovedOnError(Exception):
    """The service has deleted something that the copy needs."""


def backup(source: Path, to: Path) -> Manifest:
    """Copy a deployment into an empty or new directory. Returns the manifest that the copy has.

    Raises:
        ConfigurationError: there is no deployment, ``to`` is not empty, or the service evaluates steps faster than
            they can be copied.
        UndecodableMembersError: a part is damaged.
        OSError, sqlite3.Error: a file cannot be read or written.
    """
    existing(source)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigurationError(f"{to} is not empty: name a new directory")
    if source.resolve() in (to.resolve(), *to.resolve().parents):
        raise ConfigurationError(f"{to} lies in {source}: name a directory outside of it")
    to.mkdir(parents=True, exist_ok=True)
    to.chmod(0o700)
    for _ in range(ATTEMPTS):
        try:
            return _copy(source, to)
        except BaseException as error:
            for each in to.iterdir():  # half a copy would keep secrets, and the next backup from this name
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            if not isinstance(error, _MovedOnError):
                raise
    raise ConfigurationError(
        f"{source} is evaluated faster than it can be copied, or lacks a file: stop the service first; `kanon doctor"
        f" --data {source}` says what is missing"
    )


def _copy(source: Path, to: Path) -> Manifest:
    for name in FOLDERS:
        (to / name).mkdir(mode=0o700)
    _copy_database(source / NAME, to / UNFINISHED)
    manifest = _made_ready(to / UNFINISHED)
    parts = PartFiles(to / "parts")
    for piece in manifest.pieces:
        _link(source / "parts" / piece.name, parts.folder / piece.name)
        parts.content(piece)  # a backup of damaged states would be found when it is needed
    if (source / arrivals.NAME).exists():
        _copy_database(source / arrivals.NAME, to / arrivals.NAME)
    for file in (source / "log").glob(f"*{SUFFIX}"):
        if file.stem.isdecimal() and int(file.stem) > manifest.step:
            _copy_database(file, to / "log" / file.name)
    if (source / ACCOUNTS).exists():
        _copy_database(source / ACCOUNTS, to / ACCOUNTS)
    for file in (source / "secrets").iterdir():
        if not file.name.startswith((reports.KeyFiles.PREFIX, ISSUER_KEY, ".")):  # a dot: it is being written
            shutil.copyfile(file, to / "secrets" / file.name)
            (to / "secrets" / file.name).chmod(0o600)
    _link_history(source, to)
    if (source / reports.NAME).exists():
        _copy_reports(source, to)
    with closing(ControlFile(source)) as control:
        if manifest.step >= 0 and manifest.step not in {each.step for each in control.manifests()}:
            raise _MovedOnError
    _sync(to)
    (to / UNFINISHED).rename(to / NAME)
    flush(to)
    return manifest


def _link_history(source: Path, to: Path) -> None:
    """The history of lists: files that nobody changes. The lists themselves are made again from the control file."""
    for file in sorted((source / lists.FOLDER).glob("*/*/*/*.parquet")):
        place = to / file.relative_to(source)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _link(file, place)


def _copy_reports(source: Path, to: Path) -> None:
    before = _published(source)
    _copy_database(source / reports.NAME, to / reports.NAME)
    with closing(reports.ReportsFile(to)) as file:
        reports.begin_again(file, clock.now())
    try:
        for folder in (source / "summaries", *(source / "work").glob("*/staged")):
            shutil.copytree(folder, to / folder.relative_to(source))
    except (shutil.Error, FileNotFoundError) as error:
        raise _MovedOnError from error
    if _published(source) != before:
        raise _MovedOnError  # the copied file of reports knows nothing of it


def _published(source: Path) -> set[Path]:
    """Summaries, and parts of those that are about to be published. Each is written once."""
    return {each for pattern in ("summaries/**/*", "work/*/staged/**/*") for each in source.glob(pattern)}


def _copy_database(source: Path, to: Path) -> None:
    """Copy a SQLite file in one state, while others write it."""
    try:
        original = sqlite3.connect(f"file:{quote(str(source.absolute()))}?mode=rw", uri=True)
    except sqlite3.OperationalError as error:
        raise _MovedOnError from error
    with closing(original), closing(sqlite3.connect(to)) as copy:
        original.backup(copy)


def _made_ready(control: Path) -> Manifest:
    """Let a copied control file name its last manifest alone, and no place. Returns the manifest."""
    with closing(connect(control)) as database:
        database.execute("DELETE FROM manifests WHERE step < (SELECT MAX(step) FROM manifests)")
        database.execute("INSERT OR REPLACE INTO texts VALUES (?, 'a backup')", (PLACE,))
    with closing(_Named(control)) as copied:
        return copied.manifest() or Manifest(-1)


class _Named(ControlFile):
    """A control file under another name."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent)
        self.path = path

    def remember(self) -> None:
        """Nothing: it is no file of a deployment yet."""


def _link(source: Path, to: Path) -> None:
    """Give a file, which nobody changes, another name; on another file system it is copied."""
    try:
        os.link(source, to)
    except FileNotFoundError as error:
        raise _MovedOnError from error
    except OSError:
        shutil.copyfile(source, to)
        to.chmod(0o600)


def _sync(folder: Path) -> None:
    """Make a folder and all in it durable."""
    for each in folder.iterdir():
        if each.is_dir():
            _sync(each)
        else:
            flush(each)
    flush(folder)
