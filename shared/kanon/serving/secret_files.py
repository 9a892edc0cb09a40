"""The secrets of a directory: files in a folder of their own that only its user can read.

The first start draws those that are not there.
"""

import json
import os
import secrets
import uuid
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from kanon.created import PRIVATE, flush
from kanon.disk import UNFINISHED
from kanon.errors import ConfigurationError
from kanon.keys import Secret
from kanon.noise.words import NoiseKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

DEPLOYMENT, PEPPER, CLIENT_KEY, NOISE_KEYS = "deployment", "set-pepper", "client-key", "noise-keys.json"
LIST_KEY = "list-key"
"""The private key of the lister, of a deployment that had a listed type."""
ISSUER_KEY, ACCOUNT_KEY, GATEWAY_KEY = "issuer-key", "account-key", "gateway-key"
FIRST_KEY = "1"
SHORTEST_SECRET = 43
"""Characters of base64 for 256 bits."""


def at_random(name: str) -> str:
    """The id of a new deployment, or a new secret."""
    return str(uuid.uuid4()) if name == DEPLOYMENT else secrets.token_urlsafe(48)


def refuse_given(folder: Path) -> None:
    """Refuse secrets that somebody has put there for a new deployment and nobody would read, or anybody could guess.

    Raises:
        ConfigurationError: there is one.
    """
    names = (PEPPER, CLIENT_KEY, NOISE_KEYS)  # an issuer key that came back would revive ended credentials
    for file in sorted(folder.iterdir()):
        if file.name.startswith("."):  # a mounted secret has such folders
            continue
        if file.name not in names:
            near = " or ".join(get_close_matches(file.name, names, 1) or names)
            raise ConfigurationError(
                f"{file} is no secret that a new deployment takes: take it away, or call it {near}"
            )
        texts = noise_texts(file) if file.name == NOISE_KEYS else {FIRST_KEY: _text(file)}
        if set(texts) != {FIRST_KEY}:
            raise ConfigurationError(f"{file} must have one key with the id {FIRST_KEY}")
        if len(texts[FIRST_KEY]) < SHORTEST_SECRET:
            raise ConfigurationError(
                f"{file} has fewer than {SHORTEST_SECRET} characters: put random ones there (`openssl rand -base64 48`)"
            )


def secrets_of(
    folder: Path, ids: Iterable[str], draw: Callable[[str], str] | None
) -> tuple[Secret, Secret, dict[str, NoiseKey]]:
    """Set pepper, client key and noise keys of a deployment.

    Args:
        folder: their folder, which is made if it does not exist.
        ids: the noise keys that it needs.
        draw: draws those that are missing, by name; None for a deployment that had them.

    Raises:
        ConfigurationError: one is missing, or cannot be read.
    """
    if draw is not None:
        folder.mkdir(mode=0o700, exist_ok=True)
    for name in (PEPPER, CLIENT_KEY, NOISE_KEYS):
        if not (folder / name).exists():
            if draw is None:
                raise ConfigurationError(f"{folder / name} is missing: put it back from a backup")
            text = draw(name)
            write_secret(folder / name, json.dumps({FIRST_KEY: text}) if name == NOISE_KEYS else text)
    pepper, client_key = (secret_of(folder / name, made=False) for name in (PEPPER, CLIENT_KEY))
    texts = noise_texts(folder / NOISE_KEYS)
    missing = [key_id for key_id in ids if key_id not in texts]
    if missing:
        raise ConfigurationError(f"{folder / NOISE_KEYS} lacks key {', '.join(missing)}: add it first")
    return pepper, client_key, {key_id: noise_key(key_id, text) for key_id, text in texts.items()}


def secret_of(file: Path, *, made: bool) -> Secret:
    """A secret with the name of its file; ``made``: it is made if it is missing.

    Raises:
        ConfigurationError: it is missing, no text, or too short.
    """
    if not file.exists():
        if not made:
            raise ConfigurationError(f"{file} is missing: put it back from a backup")
        write_secret(file, at_random(file.name))
    text = _text(file)
    if len(text) < SHORTEST_SECRET:
        raise ConfigurationError(f"{file} is damaged, and anybody could guess it: put it back from a backup")
    return Secret.derived(file.name, text)


def pepper_of(path: Path) -> Secret:
    """The set pepper of a directory."""
    return secret_of(path / "secrets" / PEPPER, made=False)


def list_key(file: Path) -> "X25519PrivateKey":
    """The private key of the lister.

    Raises:
        ConfigurationError: it cannot be read.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    try:
        return X25519PrivateKey.from_private_bytes(bytes.fromhex(file.read_text().strip()))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} is missing or damaged: put it back from a backup") from error


def noise_texts(file: Path) -> dict[str, str]:
    """The texts of the noise keys by their ids.

    Raises:
        ConfigurationError: the file has something else.
    """
    try:
        texts = json.loads(file.read_text())
    except ValueError:
        texts = None
    if not isinstance(texts, dict) or not all(isinstance(text, str) and text for text in texts.values()):
        raise ConfigurationError(f'{file} must be a JSON object such as {{"1": "..."}} without empty texts')
    return texts


def noise_key(key_id: str, text: str) -> NoiseKey:
    """The noise key of a text."""
    return NoiseKey(key_id, Secret.derived(f"noise-key/{key_id}", text).key)


def _text(file: Path) -> str:
    """The text of a secret."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read as text: {error}") from error


def write_secret(file: Path, text: str) -> None:
    """Write a secret that only this user can read, in the place of one that is there; whole, or not at all.

    It is durable when this returns.
    """
    new = file.with_name(f".{file.name}{UNFINISHED}")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w") as written:
        written.write(text)
        written.flush()
        os.fsync(written.fileno())
    new.replace(file)
    flush(file.parent)
