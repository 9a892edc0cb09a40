"""Credentials of a directory: its accounts, and its issuer's secret (experimental)."""

from contextlib import closing
from pathlib import Path

from kanon.credentials.enrolling import Enrolling, Issuer
from kanon.errors import ConfigurationError
from kanon.gate.enrol_routes import account_id
from kanon.gate.storage.disk.accounts import AccountsFile
from kanon.keys import Secret
from kanon.serving.directory import ACCOUNTS, CLOSED_UNTIL, NAMED_BY, OWNER, Directory, accounts_place, existing
from kanon.serving.secret_files import ACCOUNT_KEY, ISSUER_KEY, secret_of


def open_credentials(directory: Directory) -> tuple[Enrolling, Secret]:
    """What enrols in an open directory with a type that needs credentials, and the key that names its accounts.

    The secrets are made when needed first.

    Raises:
        ConfigurationError: the file of accounts was put back or is missing, or its key is.
    """
    windows = [each.parameters.window for each in directory.types.values() if each.credential]
    folder, control, file = directory.path / "secrets", directory.control, directory.path / ACCOUNTS
    known = control.text(ACCOUNTS)  # empty: nobody has enrolled since the rows were lost
    if known and known != accounts_place(directory.path):
        raise ConfigurationError(
            f"{file} is missing or was put back: one person could enrol twice. Run `kanon operate new-generation --data"
            f" {directory.path} --original none`: then nobody can enrol until no earlier join counts"
        )
    account_key = secret_of(folder / ACCOUNT_KEY, made=known is None)  # before the text that says that there is one
    control.check(OWNER, {ACCOUNT_KEY: account_key.fingerprint})
    accounts = AccountsFile(file)
    directory.closes(accounts)
    accounts.database  # noqa: B018, it makes the file
    control.put_text(ACCOUNTS, accounts_place(directory.path))
    issuer = Issuer(secret_of(folder / ISSUER_KEY, made=True), directory.settings.deployment)
    period = directory.settings.period
    enrolling = Enrolling(issuer, accounts, (max(windows) + 1) * period, lambda: float(control.text(CLOSED_UNTIL) or 0))
    return enrolling, account_key


def refuse_other_names(directory: Directory, named_by: str) -> None:
    """Refuse accounts with other names: everybody would have a second one, beside joins of the first one.

    ``named_by`` says what accounts are, and who gives them their names.

    Raises:
        ConfigurationError: it had others.
    """
    known = directory.control.recorded(OWNER).get(NAMED_BY, named_by)
    if known != named_by:
        raise ConfigurationError(
            f"accounts are {known}, not {named_by}: start with the options that they had. To go on with others, delete"
            f" {directory.path / ACCOUNTS} and run `kanon operate new-generation --data {directory.path} --original"
            f" none`: then nobody can enrol until no earlier join counts"
        )
    directory.control.check(OWNER, {NAMED_BY: named_by})


def check_accounts(path: Path) -> None:
    """Refuse a directory without accounts.

    Raises:
        ConfigurationError: it has none, or there is no deployment.
    """
    if not (existing(path) / ACCOUNTS).exists():
        raise ConfigurationError(f"{path} has no accounts: no type needs a credential, or they were lost")


def delete_account(path: Path, name: str) -> bool:
    """Do what the account may do itself: end its credentials, also beside a running service.

    Args:
        path: the directory.
        name: the kind of account (``KEY``, ``JWT`` or ``DEVICE``), a space, and its name.

    Returns:
        Whether the account has a row. It stays, marked as deleted, until no earlier join can count.

    Raises:
        ConfigurationError: nobody has ever enrolled, or the file of accounts was overwritten with an older one.
    """
    check_accounts(path)
    account = account_id(secret_of(path / "secrets" / ACCOUNT_KEY, made=False), name)
    with closing(AccountsFile(path / ACCOUNTS)) as accounts:
        accounts.delete(account)
        return accounts.read(account) is not None
