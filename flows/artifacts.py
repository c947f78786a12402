"""What a flow run shows on its pages: the table of stages, the verdict with its picture, and the outputs as assets."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.schemas.objects import State

from flows.graph import Stage
from flows.stage import StageResult

_VERDICT = "table.md"
_PICTURE = "pareto.png"
_PIXELS, _COLOURS = 1200, 64


class StageRow(TypedDict):
    """A line of the table of stages."""

    stage: str
    state: str
    seconds: float | None


def stage_row(name: str, state: State[StageResult]) -> StageRow:
    """Return the row of one stage for the table of stages."""
    if state.is_completed():
        run: StageResult = state.result()
        return {"stage": name, "state": run.state, "seconds": round(run.seconds, 1)}
    return {"stage": name, "state": "failed" if state.is_failed() else "not run", "seconds": None}


def create_artifacts(stages: Sequence[Stage], rows: list[StageRow]) -> None:
    """Create the table of stages, and an artifact for each `table.md` that a stage has written."""
    create_table_artifact([dict(row) for row in rows], key="stages", description="The result of each stage in this flow run.")
    done = {row["stage"] for row in rows if row["state"] in ("ran", "cached")}
    for stage in stages:
        for out in stage.outs:
            if stage.name in done and out.name == _VERDICT:
                key = f"verdict-{artifact_key(stage.name.rpartition('@')[2])}"
                create_markdown_artifact(_verdict(out, stage.outs), key=key, description=f"The verdict of {stage.name}.")


def artifact_key(name: str) -> str:
    """Reduce a name to the lower-case letters, digits and dashes that Prefect allows in artifact keys."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def _verdict(table: Path, outs: Sequence[Path]) -> str:
    """Return a report's table with the picture that the same stage drew below its first paragraph."""
    title, paragraph, rest = ([*table.read_text(encoding="utf-8").split("\n\n", 2), "", ""])[:3]
    pictures = [f"![Quality against latency]({_data_uri(out)})" for out in outs if out.name == _PICTURE and out.is_file()]
    return "\n\n".join(part for part in (title, paragraph, *pictures, rest) if part)


def _data_uri(picture: Path) -> str:
    """Return a picture as part of a page, scaled down: the server keeps a copy for each run."""
    from PIL import Image

    with Image.open(picture) as image:
        image.thumbnail((_PIXELS, _PIXELS))
        small = io.BytesIO()
        image.convert("RGB").quantize(_COLOURS).save(small, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(small.getvalue()).decode()}"
