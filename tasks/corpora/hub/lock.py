"""The lock file: the commit of each data set that was fetched, which later fetches use.

A line is `"name@revision": "commit"`. The file is to be committed, so that a team reads the same text; `prepare` depends on it
(`active` in params.yaml names it). Without its line, a data set is fetched at its newest commit again.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from tasks.corpora.hub.data_sets import DataSet
from tasks.errors import InputError
from tasks.files import append_line, atomic_write
from tasks.hub import is_connection_error

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SECONDS = 30.0
"""How long the hub may take to name a commit."""


def locked_commit(data_set: DataSet, lock: Path) -> str | None:
    """The commit of a data set: its revision if that is one, otherwise that of its line in the lock file; None without a line.

    Raises:
        InputError: the lock file cannot be read, or holds something else.
    """
    if _COMMIT.fullmatch(data_set.revision):
        return data_set.revision
    try:
        lines = yaml.safe_load(lock.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{lock} is no lock file of data sets ({reason}); restore it from git, or remove it") from None
    commit = lines.get(_key(data_set)) if isinstance(lines, dict) else ""
    if commit is not None and not (isinstance(commit, str) and _COMMIT.fullmatch(commit)):
        raise InputError(f"{lock}: {_key(data_set)} has no commit of 40 hexadecimal digits; restore it from git, or remove it")
    return commit


def add_commit(data_set: DataSet, commit: str, lock: Path) -> None:
    """Write the commit of a data set to the lock file."""
    if not _COMMIT.fullmatch(data_set.revision):
        # A line is appended at once, so that stages which run side by side keep each other's.
        append_line(lock, f"{json.dumps(_key(data_set))}: {json.dumps(commit)}\n")


def newer_commit(data_set: DataSet, lock: Path) -> str | None:
    """Return the newest commit of a data set if the lock file holds another one.

    Without a line in the lock file there is nothing to compare; the next fetch takes the newest commit anyway.

    Raises:
        InputError: the lock file cannot be read, or the hub names no commit.
    """
    locked = locked_commit(data_set, lock)
    if locked in (None, data_set.revision):
        return None
    newest = newest_commit(data_set)
    return None if newest == locked else newest


def replace_commit(data_set: DataSet, commit: str, lock: Path) -> None:
    """Write another commit in place of the line of a data set; the other lines stay as they are."""
    lines = lock.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if _key(data_set) not in (yaml.safe_load(line) or {})]
    atomic_write(lock, "".join([*kept, f"{json.dumps(_key(data_set))}: {json.dumps(commit)}\n"]))


def newest_commit(data_set: DataSet) -> str:
    """Ask the hub for the commit of a data set's revision.

    Raises:
        InputError: there is no such data set or revision, or it needs a login.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        found = HfApi().dataset_info(data_set.name, revision=data_set.revision, timeout=_SECONDS).sha
    except GatedRepoError:
        reason = "its owner asks for consent; give it on the page of the data set and run hf auth login"
    except RevisionNotFoundError:
        reason = "there is no such revision; correct corpus.hub.revision"
    except RepositoryNotFoundError:
        reason = "there is none of that name, or it is private; correct corpus.hub.name, or run hf auth login"
    except Exception as error:
        if not (isinstance(error, HfHubHTTPError | ValueError) or is_connection_error(error)):
            raise
        reason = f"{' '.join(str(error).split()).rstrip('.')}; try again later"
    else:
        if found:
            return found
        reason = "the hub names no commit; try again later"
    raise InputError(f"no data set {data_set.name} at revision {data_set.revision} on {constants.ENDPOINT}: {reason}")


def _key(data_set: DataSet) -> str:
    return f"{data_set.name}@{data_set.revision}"
