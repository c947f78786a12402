"""The command `tasks.sweep --dask` on trained models, with workers in a clone of their own: the rows of the serial sweep."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.dask_cluster import dask_scheduler, dask_workers
from tests.e2e.conftest import copy_of, environment, read_params, run_in, write_params
from tests.optional import slow_with
from tests.served import ROOT
from tests.shared_sweep import JOURNAL, PROCESSES, done_by, journal

pytestmark = slow_with("distributed")

WORKERS = 2
REPLAYED: dict[str, dict[str, list[Any]]] = {
    "bild": {"fallback_threshold": [0.3], "rollback_threshold": [3.0]},
    "speculative": {"draft_length": [3]},
    "speculative_lenient": {"lenience": [0.5]},
    "speculative_confident": {},
    "token_cascade": {},
    "sequence_cascade": {"confidence": ["mean"]},
    "bild_oracle": {},
}
DECODED: dict[str, dict[str, list[Any]]] = {
    "beam_large": {"beams": [2]},
    "speculative_beam": {"beams": [2], "draft_beams": [3]},
    "calm": {"confidence": ["softmax"]},
}
"""The only setting of a method is timed and chosen whatever its speed, so that no row depends on how fast anything was."""
UNTIMED = {"bild_oracle"}
MEASURED_TIMES = {"sha256", "latency_ms", "vanilla_latency_ms", "speedup", "speedup_interval", "rounds", "predicted"}


def unswept(finished: Path, folder: Path) -> Path:
    """A copy of the finished clone with the grid above, in which nothing has been swept."""
    folder.mkdir()
    clone = copy_of(finished, folder)
    params = read_params(clone)
    grid = [{"method": method, "values": values} for method, values in {**REPLAYED, **DECODED}.items()]
    params["tasks"]["translation"]["sweep"]["grid"] = grid
    write_params(clone, params)
    for name in ("results/translation/sweep", ".cache/resume"):
        shutil.rmtree(clone / name, ignore_errors=True)
    return clone


def sweep(clone: Path, module: str, *options: str, **variables: str) -> dict[str, list[Any]]:
    """Sweep by a command; of the aligned drafters return the rows of each file, in the file's order, apart from times."""
    done = run_in(clone, sys.executable, "-m", module, "--task", "translation", *options, **variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " 0 failed" in done.stderr and "has ended" not in done.stderr, done.stderr
    folder = clone / "results/translation/sweep/aligned"
    return {str(file.relative_to(folder)): rows_of(file) for file in sorted(folder.rglob("rows*.jsonl"))}


def rows_of(file: Path) -> list[Any]:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert {row["method"] for row in rows if "speedup" not in row} <= UNTIMED
    return [{name: value for name, value in row.items() if name not in MEASURED_TIMES} for row in rows]


def with_tests(clone: Path) -> str:
    """The path on which Python finds the code of a clone, and the tests, which a clone does not have."""
    return os.pathsep.join([environment(clone)["PYTHONPATH"], str(ROOT)])


def test_a_sweep_shared_with_dask_workers_has_the_serial_rows(finished: Path, tmp_path: Path) -> None:
    serial, shared, there = (unswept(finished, tmp_path / name) for name in ("serial", "shared", "there"))
    wanted = sweep(serial, "tasks.sweep")
    assert set(wanted) == {"rows.jsonl", "seeds/2/rows.jsonl"}
    validated = {row["method"]: row["how"] for row in wanted["rows.jsonl"] if row["split"] == "validation"}
    assert {how: {one for one in validated if validated[one] == how} for how in ("replayed", "decoded")} == {
        "replayed": set(REPLAYED),
        "decoded": {*DECODED, "vanilla_large", "vanilla_small"},
    }

    noted = {JOURNAL: str(tmp_path / "journal"), PROCESSES: str(WORKERS + 1)}
    variables = environment(there) | noted | {"PYTHONPATH": with_tests(there)}
    options = ("--preload", "tests.shared_sweep")
    with (
        dask_scheduler(tmp_path) as (address, _),
        dask_workers(address, WORKERS, tmp_path, *options, variables=variables, cwd=there),
    ):
        found = sweep(shared, "tests.shared_sweep", "--dask", address, **noted, PYTHONPATH=with_tests(shared))
    assert found == wanted

    entries = journal(tmp_path / "journal")
    [timing] = done_by(entries, "time")
    for what in ("replay", "decode"):
        assert len(done_by(entries, what) - {timing}) == WORKERS
    at_work: dict[int, str] = {}
    for entry in entries:
        at_work[entry.process] = entry.what
        assert len(at_work) == 1 or "time" not in at_work.values(), "somebody worked beside a timing"
        if not entry.begins:
            del at_work[entry.process]
