"""Output files of commands, checked before the work begins."""

import os
from pathlib import Path

import typer


def picture(path: Path | None, option: str) -> None:
    """Check the path of a picture, if it was given. Its folder is created.

    Raises:
        typer.BadParameter: its name does not end in .png, or it cannot be written.
    """
    if path is not None and path.suffix.lower() != ".png":
        raise typer.BadParameter(f"{path}: give a name that ends in .png", param_hint=option)
    writable(path, option)


def writable(path: Path | None, option: str) -> None:
    """Check the path of a file, if it was given. Its folder is created.

    Raises:
        typer.BadParameter: it cannot be written.
    """
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        usable = os.access(path if path.exists() else path.parent, os.W_OK) and not path.is_dir()
        reason = "you may not write this file"
    except (OSError, ValueError) as error:
        usable, reason = False, getattr(error, "strerror", None) or str(error)
    if not usable:
        raise typer.BadParameter(f"{path} cannot be written: {reason}", param_hint=option)
