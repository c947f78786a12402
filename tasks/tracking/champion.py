"""The champion of a task: the version of its registered model that the alias `champion` names, and those that it replaced.

This is the only code that reads from MLflow, and no stage uses it. The champions in their order stand in a tag of the
registered model, so that a roll-back finds the one before; the alias alone says which is the champion now.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from tasks.errors import InputError
from tasks.files import folder_checksum
from tasks.tracking.client import Unavailable, connect, one_line, tracking_uri
from tasks.tracking.registration import ALIAS, CONTENT_TAG, model_name

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHAMPION = "champion"
"""The alias."""
CHAMPIONS_TAG = "draftline.champions"
"""Of the registered model: the versions that became champion, the latest last, separated by commas."""
REFUSED_TAG, WHY_TAG, ROLLED_BACK_TAG = "draftline.refused", "draftline.why", "draftline.rolled_back"
"""Of a version: what it was refused against, why it was promoted or refused, and when it was rolled back."""
_PAIR = "artifacts/pair"


@dataclass(frozen=True)
class PairVersion:
    """A version of the registered model."""

    number: str
    content: str
    """Checksum of the pair's folder."""
    source: str
    """Where MLflow keeps the model's files."""
    tags: dict[str, str]


class ChampionRegistry:
    """The registered model of a task in MLflow.

    Args:
        task: Its name.
        uri: Of MLflow; None: `tracking_uri`.

    Raises:
        InputError: MLflow does not open, or holds no pair of the task.
    """

    def __init__(self, task: str, uri: str | None = None) -> None:
        self.name, self._uri = model_name(task), uri or tracking_uri()
        try:
            self._client: MlflowClient = connect(self._uri)
        except Unavailable as error:
            raise InputError(f"MLflow does not open: {error}; start it, or set MLFLOW_TRACKING_URI") from None
        with self._asking():
            if not self._client.search_registered_models(f"name = '{self.name}'"):
                raise InputError(
                    f"MLflow holds no model {self.name}; make one by python -m tasks.report --task {task}, "
                    "and send it by python -m tasks.tracking"
                )

    def candidate(self) -> PairVersion:
        """Return the version of the newest report.

        Raises:
            InputError: no version has the alias.
        """
        return self._of_alias(ALIAS) or self._missing(f"no version with the alias {ALIAS}; report the pair again")

    def champion(self) -> PairVersion | None:
        """Return the champion; None where there is none yet."""
        return self._of_alias(CHAMPION)

    def version(self, number: str) -> PairVersion:
        """Return a version by its number.

        Raises:
            InputError: there is none.
        """
        found = {one.number: one for one in self._versions()}
        return found.get(number) or self._missing(f"no version {number}; it has {', '.join(sorted(found, key=int))}")

    def version_of(self, folder: Path) -> PairVersion:
        """Return the version with the content of a pair's folder.

        Raises:
            InputError: the folder is not registered.
        """
        content = folder_checksum(folder)
        found = next((one for one in self._versions() if one.content == content), None)
        return found or self._missing(f"no version of {folder}; send what waits by python -m tasks.tracking")

    def fetch(self, version: PairVersion, scratch: Path) -> Path:
        """Return the folder of a version's pair: MLflow's own where it lies on this machine, else a copy in `scratch`.

        Raises:
            InputError: it cannot be read, or is not what was registered.
        """
        place = urlsplit(version.source)
        if place.scheme in ("", "file"):
            folder = Path(url2pathname(place.path)) / _PAIR
        else:
            from mlflow.artifacts import download_artifacts

            with self._asking():
                scratch.mkdir(parents=True, exist_ok=True)
                source = f"{version.source.rstrip('/')}/{_PAIR}"
                folder = Path(download_artifacts(artifact_uri=source, dst_path=str(scratch), tracking_uri=self._uri))
        if not folder.is_dir() or folder_checksum(folder) != version.content:
            raise InputError(
                f"version {version.number} of {self.name}: its files in MLflow's store are not those that were registered; "
                "restore the store, or delete the version and report its pair again"
            )
        return folder

    def promote(self, version: PairVersion, champion: PairVersion | None, why: str) -> None:
        """Give a version the alias `champion`.

        Args:
            version: The new champion.
            champion: The one that it was compared with.
            why: For the version's tag.

        Raises:
            InputError: the alias was moved meanwhile.
        """
        with self._asking():
            current = self._of_alias(CHAMPION)
            if (current and current.number) != (champion and champion.number):
                now = f"is version {current.number} now" if current else "is gone"
                raise InputError(f"the champion of {self.name} {now}: it changed during the comparison; run it again")
            self._client.set_model_version_tag(self.name, version.number, WHY_TAG, why)
            for tag in (REFUSED_TAG, ROLLED_BACK_TAG):
                if tag in version.tags:
                    self._client.delete_model_version_tag(self.name, version.number, tag)
            self._client.set_registered_model_alias(self.name, CHAMPION, version.number)
            before = [number for number in self._champions() if number != version.number]
            known = [champion.number] if champion and champion.number not in before else []
            self._client.set_registered_model_tag(self.name, CHAMPIONS_TAG, ",".join([*before, *known, version.number]))

    def refuse(self, version: PairVersion, against: str, why: str) -> None:
        """Note on a version why it was not promoted; `against` says what it was compared with, and on which examples."""
        with self._asking():
            self._client.set_model_version_tag(self.name, version.number, WHY_TAG, why)
            self._client.set_model_version_tag(self.name, version.number, REFUSED_TAG, against)

    def roll_back(self) -> tuple[str, str]:
        """Give the alias back to the champion before this one; return the numbers of both, the new one last.

        The version that loses the alias is not promoted again by itself.

        Raises:
            InputError: there is no champion, or none before it.
        """
        current = self.champion() or self._missing("no champion, so that nothing can be rolled back")
        with self._asking():
            champions, there = self._champions(), {one.number for one in self._versions()}
            last = len(champions) if current.number not in champions else champions.index(current.number)
            before = [number for number in champions[:last] if number in there]
            if not before:
                raise InputError(f"{self.name} has no champion before version {current.number}; promote another version first")
            self._client.set_registered_model_alias(self.name, CHAMPION, before[-1])
            self._client.set_registered_model_tag(self.name, CHAMPIONS_TAG, ",".join(before))
            moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
            self._client.set_model_version_tag(self.name, current.number, ROLLED_BACK_TAG, moment)
        return current.number, before[-1]

    def _champions(self) -> list[str]:
        tag = self._client.get_registered_model(self.name).tags.get(CHAMPIONS_TAG, "")
        return [number for number in tag.split(",") if number]

    def _versions(self) -> list[PairVersion]:
        with self._asking():
            found = self._client.search_model_versions(f"name = '{self.name}'")
        return [PairVersion(str(one.version), one.tags.get(CONTENT_TAG, ""), one.source, dict(one.tags)) for one in found]

    def _of_alias(self, alias: str) -> PairVersion | None:
        with self._asking():
            number = self._client.get_registered_model(self.name).aliases.get(alias)
        return None if number is None else self.version(str(number))

    def _missing(self, what: str) -> PairVersion:
        raise InputError(f"{self.name} has {what}")

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn whatever goes wrong between here and MLflow into one line."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"MLflow: {one_line(error)}; look at its server, then run the command again") from error
