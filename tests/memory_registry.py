"""Logged models and the model registry of an `MlflowClient` in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple


class ModelOutput(NamedTuple):
    """Stands for `mlflow.entities.LoggedModelOutput`."""

    model_id: str
    step: int


class MemoryRegistry(ABC):
    """The part of a client that the registration of a pair uses."""

    def __init__(self) -> None:
        self.logged: dict[str, Any] = {}
        self.versions: list[Any] = []
        self.aliases: dict[str, dict[str, str]] = {}
        self.registered_tags: dict[str, dict[str, str]] = {}
        self.outputs: dict[str, list[ModelOutput]] = {}
        self.measured: dict[str, set[tuple[Any, ...]]] = {}
        """Metrics by logged model."""

    @abstractmethod
    def _request(self, kind: str, work: Callable[[], Any]) -> Any: ...

    def get_run(self, run_id: str) -> Any:
        return self._request("get run", lambda: SimpleNamespace(outputs=self._outputs(run_id), data=self._data(run_id)))

    @abstractmethod
    def _data(self, run_id: str) -> Any: ...

    def _outputs(self, run_id: str) -> Any:
        made = self.outputs.get(run_id)
        return SimpleNamespace(model_outputs=list(made)) if made else None

    def log_outputs(self, run_id: str, models: list[ModelOutput]) -> None:
        self._request("log outputs", lambda: self.outputs.setdefault(run_id, []).extend(models))

    def search_logged_models(self, experiments: list[str], wanted: str, max_results: int) -> list[Any]:
        tag, value = wanted.removeprefix("tags.`").removesuffix("'").split("` = '")
        found = self._request("search models", lambda: [one for one in self.logged.values() if one.tags.get(tag) == value])
        return list(found)[:max_results]

    def create_logged_model(
        self, experiment: str, name: str, run_id: str, tags: dict[str, str], params: dict[str, str] | None = None
    ) -> Any:
        def create() -> Any:
            place = f"models/{len(self.logged)}"
            model = SimpleNamespace(model_id=f"m{len(self.logged)}", name=name, tags=tags, status="PENDING", files={})
            model.artifact_location, model.params = place, params
            return self.logged.setdefault(model.model_id, model)

        return self._request("create model", create)

    def log_model_artifacts(self, model_id: str, folder: str) -> None:
        for file in sorted(file for file in Path(folder).rglob("*") if file.is_file()):
            name, content = file.relative_to(folder).as_posix(), file.read_bytes()
            self._request("model file", partial(self.logged[model_id].files.__setitem__, name, content))

    def finalize_logged_model(self, model_id: str, status: str) -> None:
        self._request("finalize model", lambda: setattr(self.logged[model_id], "status", status))

    def search_registered_models(self, wanted: str) -> list[str]:
        name = wanted.removeprefix("name = '").removesuffix("'")
        return list(self._request("search registered", lambda: [one for one in self.aliases if one == name]))

    def create_registered_model(self, name: str) -> None:
        def create() -> None:
            assert name not in self.aliases
            self.aliases[name] = {}

        self._request("create registered", create)

    def get_registered_model(self, name: str) -> Any:
        def get() -> Any:
            return SimpleNamespace(aliases=dict(self.aliases[name]), tags=dict(self.registered_tags.get(name, {})))

        return self._request("get registered", get)

    def set_registered_model_tag(self, name: str, tag: str, value: str) -> None:
        self._request("tag registered", lambda: self.registered_tags.setdefault(name, {}).update({tag: value}))

    def search_model_versions(self, wanted: str) -> list[Any]:
        name = wanted.removeprefix("name = '").removesuffix("'")
        return list(self._request("search versions", lambda: [one for one in self.versions if one.name == name]))

    def create_model_version(
        self, name: str, source: str, run_id: str, tags: dict[str, str], link: None, description: str, wait: int, model_id: str
    ) -> Any:
        def create() -> Any:
            number = 1 + max((int(one.version) for one in self.versions), default=0)
            version = SimpleNamespace(name=name, version=str(number), source=source, run_id=run_id, tags=dict(tags), aliases=[])
            version.description = description
            self.versions.append(version)
            return version

        return self._request("create version", create)

    def get_model_version(self, name: str, version: str) -> Any:
        def get() -> Any:
            found = self._get_version(name, version)
            found.aliases = [alias for alias, number in self.aliases[name].items() if number == version]
            return found

        return self._request("get version", get)

    def delete_model_version(self, name: str, version: str) -> None:
        kept = [one for one in self.versions if (one.name, one.version) != (name, version)]
        self._request("delete version", lambda: self.versions.__setitem__(slice(None), kept))

    def set_model_version_tag(self, name: str, version: str, tag: str, value: str) -> None:
        self._request("tag version", lambda: self._get_version(name, version).tags.update({tag: value}))

    def delete_model_version_tag(self, name: str, version: str, tag: str) -> None:
        self._request("untag version", lambda: self._get_version(name, version).tags.pop(tag))

    def _get_version(self, name: str, version: str) -> Any:
        (found,) = (one for one in self.versions if (one.name, one.version) == (name, version))
        return found

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        self._request("alias", lambda: self.aliases[name].update({alias: version}))
