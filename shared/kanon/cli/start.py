"""Starts the program. A signal or a closed output ends it with one line and no traceback, at any moment."""

import os
import sys

_LAST_WORDS = b"kanon: interrupted\n"

try:
    from kanon.cli.signals import die_of_signals, interrupted, note_signals
except KeyboardInterrupt:  # before the signals are noted; the others end the program at once
    os.write(2, _LAST_WORDS)
    os._exit(130)


def main() -> None:
    """Run the command line.

    Exit status: that of the command, or 128 plus the number of the signal that ended it.
    """
    note_signals()
    try:
        _open_standard_files()
        _refuse_another_kanon()
        from kanon.cli.main import app

        app(prog_name="kanon")
    except BaseException:
        if not interrupted():
            raise
    finally:
        die_of_signals()
    os.write(2, _LAST_WORDS)
    sys.exit(128 + interrupted())


def _refuse_another_kanon() -> None:
    """End with one line if the other project called ``kanon`` is installed: both use the import name ``kanon``."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("kanon")
    except PackageNotFoundError:
        return
    os.write(
        2,
        b"kanon: another project with the name kanon is installed here, and its files take the place of this one's:"
        b" pip uninstall kanon, then pip install --force-reinstall kanon-dp\n",
    )
    sys.exit(2)


def _open_standard_files() -> None:
    """Open closed standard files, so that no other file gets their numbers. A result needs a place to go."""
    closed = sys.stdout is None
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    if closed:
        sys.stdout = os.fdopen(1, "w")
        os.write(2, b"kanon: standard output is closed: leave it open, or redirect it to a file or /dev/null\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
