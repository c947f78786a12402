"""What a task takes of a card: settings that fit, one line where none do, and a plan without a download."""

import dataclasses
import json
import math
import tomllib
from pathlib import Path

import pytest

from tasks import config
from tasks.config import Task
from tasks.errors import InputError
from tasks.machine import MachineSettings
from tasks.presets import CARDS, Card, plan, variant_of
from tasks.presets.__main__ import main
from tasks.presets.plan import Plan, StagePlan, require_fit, table
from tests.commands import Run, runner

PARAMS = Path(config.__file__).parents[1] / "params.yaml"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in a folder with the project's own parameters, on a machine without a GPU."""
    (tmp_path / "params.yaml").write_text(PARAMS.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "card_at_hand", lambda: None)
    return runner(main, monkeypatch, capsys)


def xsum(**training: object) -> Task:
    """The task, with settings of both trainings."""
    section = variant_of("xsum-bild").section()
    for one in (section["finetune"]["large"], section["align"]):
        one |= training
    return Task.model_validate_json(json.dumps(section))


def stages(task: Task, card: Card) -> dict[str, StagePlan]:
    return {one.stage: one for one in Plan(task, card).stages()}


def test_micro_batches_shrink_until_a_step_fits() -> None:
    task = xsum()
    found = {name: stages(task, CARDS[name])["finetune_large"] for name in ("T4", "A100", "H200")}
    parts = [one.settings["accumulation"] for one in found.values()]
    assert parts == sorted(parts, reverse=True) and parts[0] == 16
    assert all(one.memory <= 0.9 * CARDS[name].memory for name, one in found.items())
    # A card of 11 GB holds eight texts of T5-large where activations are recomputed, and a step has a third more work.
    small = stages(task, dataclasses.replace(CARDS["T4"], memory=11e9))["finetune_large"]
    assert small.settings == {"accumulation": 2, "activation_checkpointing": True}
    assert small.operations == pytest.approx(4 / 3 * found["T4"].operations)
    assert found["T4"].hours == pytest.approx(found["T4"].operations / (0.35 * 8.1e12) / 3600)


def test_the_weights_of_published_models_are_counted() -> None:
    """T5-large has 737.7, T5-small 60.5 million parameters, and Gemma 2 27B 27.2 billion, taken in bfloat16."""
    found = stages(xsum(), CARDS["A100"])
    assert found["finetune_large"].host == pytest.approx(4 * 737.7e6, rel=1e-3)
    assert found["finetune_small"].disk == pytest.approx(4 * 60.5e6, rel=1e-3)
    gemma = Task.model_validate_json(json.dumps(variant_of("gsm8k").section()))
    assert stages(gemma, CARDS["H200"])["finetune_large"].memory == pytest.approx(2 * 27.2e9, rel=1e-2)


def test_what_does_not_fit_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    task, machine = xsum(accumulation=1, precision="float32"), MachineSettings()
    monkeypatch.setattr(plan, "card_at_hand", lambda: CARDS["A100"])
    with pytest.raises(InputError, match=r"^finetune\.large does not fit the A100 \(80 GB\); set accumulation to 2$"):
        require_fit(task, machine)
    require_fit(task, dataclasses.replace(machine, device="cpu"))
    require_fit(xsum(accumulation=2, precision="float32"), machine)
    monkeypatch.setattr(plan, "card_at_hand", lambda: dataclasses.replace(CARDS["T4"], memory=8e9))
    with pytest.raises(InputError, match=r"^finetune_large needs 9 GB for one text at a time, and the T4 has 7 GB for it; ta"):
        require_fit(task, machine)
    gemma = Task.model_validate_json(json.dumps(variant_of("gsm8k").section()))
    with pytest.raises(
        InputError, match="calibrate needs 110 GB for one text at a time, and the A100 has 72 GB for it; set ma"
    ):
        Plan(gemma, CARDS["A100"]).stages()
    assert Plan(gemma, CARDS["H200"], "bfloat16").least() < 90e9 < Plan(gemma, CARDS["H200"]).least()


@pytest.mark.parametrize(("name", "memory"), [("T4", 11e9), ("T4", 16e9), ("A100", 80e9)])
def test_a_variant_leaves_its_sizes_to_the_card(
    name: str, memory: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = xsum()
    assert (task.finetune.large.accumulation, task.calibrate.batch_size, task.sweep.quality_batch) == (0, 0, 0)
    card = dataclasses.replace(CARDS[name], memory=memory)
    monkeypatch.setattr(plan, "card_at_hand", lambda: card)
    require_fit(task, MachineSettings())
    [chosen] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("| finetune_large |")]
    assert f"accumulation {stages(task, card)['finetune_large'].settings['accumulation']}" in chosen


def test_a_machine_that_cannot_read_the_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "card_at_hand", lambda: CARDS["A100"])
    monkeypatch.setattr("tasks.machine.memory", lambda: 2e9)
    with pytest.raises(InputError, match="the weights that finetune_large reads take 3 GB, and this machine has 2 GB"):
        require_fit(xsum(), MachineSettings())


def test_a_large_model_that_fits_no_card_in_bfloat16_is_spread() -> None:
    """In float32 the smaller format is the smaller remedy. How long a spread model takes is not known."""
    section = variant_of("gsm8k").section()
    section["models"]["small"] = {"architecture": "llama", "d_model": 64, "d_ff": 128, "d_kv": 16, "heads": 4}
    task, card = Task.model_validate_json(json.dumps(section)), dataclasses.replace(CARDS["A100"], memory=48e9)
    found = {one.stage: one for one in Plan(task, card, "bfloat16").stages()}
    assert 0.8 * 48e9 <= found["calibrate"].memory <= found["sweep"].memory <= 0.9 * 48e9
    assert found["calibrate"].host == pytest.approx(2 * 27.2e9, rel=1e-2)
    assert math.isnan(found["sweep"].hours) and "not estimated" in table(list(found.values()))
    with pytest.raises(InputError, match=r"calibrate needs 110 GB .*, and the A100 has 43 GB for it; set mach"):
        Plan(task, card).stages()


def test_what_zero_takes_is_not_estimated() -> None:
    section = variant_of("xsum-bild").section()
    section["finetune"]["large"] |= {"optimizer": "adamw", "zero_stage": 3, "accumulation": 1}
    task = Task.model_validate_json(json.dumps(section))
    found = stages(task, dataclasses.replace(CARDS["T4"], memory=8e9))
    assert math.isnan(found["finetune_large"].memory)
    assert "| finetune_large | not estimated |" in table(list(found.values()))


def test_a_plan_is_printed_for_one_card_or_all(run: Run) -> None:
    assert run("add", "xsum", "--card", "A100", "--scale", "day").status == 0
    task = config.load().task("xsum-bild")
    assert (task.finetune.large.precision, task.align.precision) == ("auto", "auto")
    assert run("plan", "xsum-cascades", "--card", "T4").status == 0, "a variant needs no task"
    printed = run("plan", "xsum-bild").printed
    assert [f"{name}, " in printed for name in CARDS] == [True] * len(CARDS)
    found = json.loads(run("plan", "xsum-bild", "--card", "A100", "--json").printed)
    assert [one["stage"] for one in found["A100"]][::3] == ["finetune_large", "control"]
    # As it was added, it fits.
    assert found["A100"][2]["settings"] == {"batch_size": task.calibrate.batch_size}
    trained = found["A100"][0]["settings"]
    assert trained["accumulation"] == task.finetune.large.accumulation
    # The workers of the parameters are a CPU's.
    alone = stages(xsum(), CARDS["T4"])["calibrate"].settings["batch_size"]
    shown = json.loads(run("show", "xsum", "--card", "T4", "--json").printed)["xsum-bild"]
    assert shown["calibrate"]["batch_size"] == alone
    assert "finetune_large needs 132 GB" in json.loads(run("plan", "wmt14-en-de-sd", "--json").printed)["T4"]["refused"]
    ended = run("add", "wmt14-en-de", "--paper", "sd", "--card", "T4")
    assert ended.status == 2 and "finetune_large needs 132 GB for one text at a time, and the T4 has 14 GB for it" in ended.said
    assert "wmt14-en-de-sd" not in config.load().tasks


def test_a_sweep_counts_seeds_temperatures_and_slices() -> None:
    def hours(**changes: object) -> float:
        section = variant_of("xsum-cascades").section(scale="hour")
        section["seeds"] = changes.pop("seeds", [1])
        section["sweep"] |= changes
        return stages(Task.model_validate_json(json.dumps(section)), CARDS["A100"])["sweep"].hours

    once = hours(temperatures=[])
    assert once < hours(temperatures=[0.5]) < hours(temperatures=[0.1, 0.5])
    assert once < hours(temperatures=[], seeds=[1, 2]) < 2 * once, "further drafters are swept with a few methods"
    whole = Task.model_validate_json(json.dumps(variant_of("xsum-bild").section(scale="hour")))
    splits = {"validation": "validation[:30]", "test": "test[:30]"}
    less = dataclasses.replace(whole.corpus, hub=dataclasses.replace(whole.corpus.hub, splits=splits))  # type: ignore[type-var]
    found = [stages(whole.model_copy(update={"corpus": corpus}), CARDS["A100"])["sweep"] for corpus in (whole.corpus, less)]
    assert found[0].operations > found[1].operations


def test_processes_share_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    task = xsum()
    eight = {one.stage: one for one in Plan(task, CARDS["A100"], processes=8).stages()}["finetune_large"]
    assert eight.settings["accumulation"] == 1 and eight.hours < stages(task, CARDS["A100"])["finetune_large"].hours / 7
    section = variant_of("xsum-bild").section()
    # The control has the settings of align.
    section["finetune"]["large"] = {"steps": 0}
    section["align"] |= {"batch_size": 256, "accumulation": 1, "precision": "float32"}
    monkeypatch.setattr(plan, "card_at_hand", lambda: CARDS["H100"])
    with pytest.raises(InputError, match=r"^align does not fit the H100 \(80 GB\); set accumulation to 4$"):
        require_fit(Task.model_validate_json(json.dumps(section)), MachineSettings())


def test_no_part_of_a_package_is_left_out_of_it() -> None:
    """What is no Python is installed only where pyproject.toml names it."""
    project = tomllib.loads((PARAMS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    named = {
        file
        for package, patterns in project["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for file in (PARAMS.parent / package.replace(".", "/")).glob(pattern)
    }
    there = {file for file in (PARAMS.parent / "tasks").rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert there == {file for file in named if file.is_file()}
