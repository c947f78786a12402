"""The automations of `prefect.yaml` on a Prefect server, so that a run whose process died does not stay in the state Running.

`prefect automation create --from-file prefect.yaml` creates the same, but a second time it creates them again.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from prefect.client.orchestration import get_client
from prefect.events.schemas.automations import AutomationCore
from prefect.utilities.asyncutils import run_coro_as_sync

FILE = Path(__file__).parents[1] / "prefect.yaml"


def ensure_automations(file: Path = FILE) -> None:
    """Create the automations of a file on the server that Prefect uses, or update those of the same name."""
    wanted = [AutomationCore.model_validate(entry) for entry in yaml.safe_load(file.read_text(encoding="utf-8"))["automations"]]
    run_coro_as_sync(_ensure(wanted))


async def _ensure(wanted: list[AutomationCore]) -> None:
    async with get_client() as client:
        for automation in wanted:
            known = await client.read_automations_by_name(automation.name)
            if known:
                await client.update_automation(known[0].id, automation)
            else:
                await client.create_automation(automation)
