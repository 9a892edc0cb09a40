"""Files that commands write: refused before the work, not after it."""

import os
from pathlib import Path

import typer


def picture(path: Path | None, option: str) -> Path | None:
    """The file of a picture, as it was given.

    Raises:
        typer.BadParameter: it is no PNG file, or cannot be written.
    """
    if path is not None and path.suffix.lower() != ".png":
        raise typer.BadParameter(f"{path}: pictures are PNG files: give a name that ends in .png", param_hint=option)
    return writable(path, option)


def writable(path: Path | None, option: str) -> Path | None:
    """The file, as it was given. Its folder is created.

    Raises:
        typer.BadParameter: it cannot be written.
    """
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        usable = os.access(path if path.exists() else path.parent, os.W_OK) and not path.is_dir()
        reason = "not a file that you may write"
    except (OSError, ValueError) as error:
        usable, reason = False, getattr(error, "strerror", None) or str(error)
    if not usable:
        raise typer.BadParameter(f"{path} cannot be written: {reason}", param_hint=option)
    return path
