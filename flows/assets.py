"""The outputs of stages as Prefect assets: a stage that ran materialises them, with the hashes that DVC recorded."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from prefect.assets import Asset, AssetProperties

from flows.graph import Stage, address


def stage_assets(root: Path, stage: Stage) -> list[Asset]:
    """Return an asset for each output of a stage of the repository in `root`."""
    description = f"An output of the DVC stage {stage.name}."
    return [
        Asset(key=asset_key(root, out), properties=AssetProperties(name=_relative(root, out), description=description))
        for out in stage.outs
    ]


def asset_key(root: Path, out: Path) -> str:
    """Return `dvc://REPOSITORY/PATH`, in the characters that Prefect allows."""
    return "dvc://" + re.sub(r"[^\w./@+=,~-]", "-", f"{root.resolve().name}/{_relative(root, out)}")


def output_hashes(root: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return what `dvc.lock` says of each output of a stage, by asset key: hash, bytes, and files where it is a folder."""
    from dvc.repo import Repo

    # The lock of the repository: another stage that ends meanwhile writes the same file.
    with Repo(str(root), _wait_for_lock=True) as repo, repo.lock:
        # `repo.stage.collect` would look for the name in the working directory, which is not that of an experiment.
        (stage,) = (one for one in repo.index.stages if address(repo, one) == name)
        return {
            asset_key(root, Path(out.fs_path)): {
                "stage": name,
                out.hash_info.name or "md5": out.hash_info.value,
                "bytes": out.meta.size,
                **({} if out.meta.nfiles is None else {"files": out.meta.nfiles}),
            }
            for out in stage.outs
        }


def _relative(root: Path, out: Path) -> str:
    return Path(os.path.relpath(out, root)).as_posix()
