"""A training stage: which changes make its work different, how it is evaluated, what it saves and records."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from tasks import machine
from tasks.corpora.example import Example, read_jsonl, write_jsonl
from tasks.errors import InputError
from tasks.models.checkpoints import initial_model, load_model, save_model
from tasks.models.settings import ModelSettings, read_training_record
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths
from tasks.report import stage_warnings
from tasks.tracking import DataSet
from tasks.training import distributed, stage
from tasks.training.loop import LogMetrics, TrainingResult
from tasks.training.memory import text_cost
from tasks.training.settings import TrainingSettings
from tasks.training.stage import TrainingContext, TrainingJob, TrainingSpec, open_context, train_stage
from tests.training import same_weights, toy_job, toy_spec

PATHS = TaskPaths("toy")
TINY = ModelSettings(d_model=16, d_ff=24, d_kv=8, heads=2, encoder_layers=1, decoder_layers=2)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingJob:
    """In a repository of its own, with a corpus, a tokenizer and a large model."""
    monkeypatch.chdir(tmp_path)
    toy = toy_job(PATHS, TINY, TrainingSettings(steps=4))
    save_model(initial_model(TINY, 64, pad=0, end=1), load_tokenizer(PATHS.tokenizer), PATHS.model("large"))
    return toy


def work_of(job: TrainingJob, **changes: Any) -> str:
    return open_context(dataclasses.replace(job, **changes)).resume.name


def test_which_changes_make_the_work_different(job: TrainingJob) -> None:
    large = PATHS.model("large")
    from_folder = dataclasses.replace(TINY, pretrained=str(large))
    chosen = dataclasses.replace(job.training, choose_by="quality")
    before = work_of(job), work_of(job, model=from_folder), work_of(job, teachers=(large,)), work_of(job, training=chosen)
    assert len(set(before)) == 4
    file = Path("own.json")
    configured = dataclasses.replace(job.training, deepspeed=str(file))
    file.write_text("{}", encoding="utf-8")
    with_own = work_of(job, training=configured)
    file.write_text('{"zero_optimization": {}}', encoding="utf-8")
    assert len({before[0], with_own, work_of(job, training=configured)}) == 3
    # The metric counts where something is chosen by it.
    assert work_of(job, metric="rougeL") == before[0]
    assert work_of(job, metric="rougeL", training=chosen) != before[3]
    save_model(initial_model(dataclasses.replace(TINY, seed=9), 64, pad=0, end=1), open_context(job).tokenizer, large)
    after = work_of(job), work_of(job, model=from_folder), work_of(job, teachers=(large,)), work_of(job, training=chosen)
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, False, True]


@pytest.mark.parametrize(("changed", "said"), [({"batch_size": 10**9}, "batch_size 1000000000"), ({}, "")])
def test_a_step_that_no_memory_holds_is_refused(
    job: TrainingJob, changed: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = open_context(job)
    positions = sum(map(len, whole.examples.targets))
    monkeypatch.setattr(machine, "memory", lambda: 4 * positions * whole.model.config.vocab_size - 1)
    large = dataclasses.replace(job, training=dataclasses.replace(job.training, **changed))
    with pytest.raises(InputError, match=f"the logits of a step with {said} take") if said else contextlib.nullcontext():
        open_context(large)
    if said:
        open_context(dataclasses.replace(large, training=dataclasses.replace(large.training, accumulation=2)))


def test_micro_batches_that_are_left_open_are_those_that_fit(
    job: TrainingJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was chosen is in the settings of the opened job, and so in the card, in MLflow and in the name of the work."""
    fixed = dataclasses.replace(job.training, optimizer="adamw", batch_size=8)
    left_open = dataclasses.replace(job, training=dataclasses.replace(fixed, accumulation=0))
    cost = text_cost(open_context(job).model.config, 16, 13)
    found = dict[int, TrainingSettings]()
    for texts in (8, 4, 3, 1):
        room = cost.step_bytes(fixed, texts)
        monkeypatch.setattr(distributed, "room_of_step", lambda *_, room=room: room)
        found[texts] = open_context(left_open).job.training
    parts = {texts: one.accumulation for texts, one in found.items()}
    assert parts == {8: 1, 4: 2, 3: 4, 1: 8}
    assert not any(one.activation_checkpointing for one in found.values())
    assert "toy: finetune small: 8 micro-batches a step, 0.0 GB" in capsys.readouterr().err
    again = dataclasses.replace(fixed, activation_checkpointing=True)
    monkeypatch.setattr(distributed, "room_of_step", lambda *_: cost.step_bytes(again, 1))
    opened = open_context(left_open)
    assert opened.job.training.activation_checkpointing
    assert opened.resume != open_context(job).resume
    monkeypatch.setattr(distributed, "room_of_step", lambda *_: cost.step_bytes(again, 1) - 1)
    with pytest.raises(InputError, match=r"^finetune small needs .* for one text at a time; take optimizer adamw"):
        open_context(left_open)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"^finetune small: accumulation is 0, and several machines may fit different ones"):
        open_context(left_open)
    # What is taken as it is has no step.
    as_it_is = dataclasses.replace(left_open, training=dataclasses.replace(fixed, steps=0, accumulation=0))
    assert open_context(as_it_is).job.training.accumulation == 1


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Stands for the record of MLflow."""
    recorder = MagicMock()
    recorder.return_value.__enter__.return_value = recorder.return_value
    monkeypatch.setattr("tasks.tracking.Recorder", recorder)
    return recorder


def inputs_of(recorder: MagicMock) -> list[DataSet]:
    return [one for call in recorder.return_value.log_inputs.call_args_list for one in call.args[0]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, recorder: MagicMock) -> list[dict[str, float]]:
    """What the stage's measure gives, of a training that takes no step."""
    seen: list[dict[str, float]] = []

    def pretended(
        objective: Any, _: Any, __: Any, settings: TrainingSettings, *___: Any, measure: Any, log: LogMetrics, **____: Any
    ) -> TrainingResult:
        seen.append({"validation_loss": 2.5} if measure is None else {"validation_loss": 2.5} | measure(objective.model))
        log(seen[-1], 2)
        rows = {2: {"loss": 2.25}, 4: {"loss": 2.0, **seen[-1]}}
        return TrainingResult(2.0, seconds=1.0, resumed_from=0, steps=settings.steps, kept=2, measured=seen[-1], log=rows)

    monkeypatch.setattr(stage, "train", pretended)
    return seen


def evaluated_spec(opened: TrainingContext) -> TrainingSpec:
    return dataclasses.replace(toy_spec(opened), measure=lambda _: {"acceptance_rate": 0.5})


def test_quality_is_measured_where_it_chooses_beside_the_spec(job: TrainingJob, measured: list[dict[str, float]]) -> None:
    chosen = dataclasses.replace(job, training=dataclasses.replace(job.training, choose_by="quality"))
    for one, spec in ((job, toy_spec), (job, evaluated_spec), (chosen, toy_spec), (chosen, evaluated_spec)):
        train_stage(one, spec)
    assert [sorted(numbers) for numbers in measured] == [
        ["validation_loss"],
        ["acceptance_rate", "validation_loss"],
        ["quality", "validation_loss"],
        ["acceptance_rate", "quality", "validation_loss"],
    ]


def test_a_record_ends_with_the_kept_weights(job: TrainingJob, measured: list[dict[str, float]], recorder: MagicMock) -> None:
    # Seeds as users have them: a time of day, and the largest one.
    training, model = dataclasses.replace(job.training, seed=20261124153400), dataclasses.replace(job.model, seed=2**64 - 1)
    job = dataclasses.replace(job, training=training, model=model)
    train_stage(job, evaluated_spec)
    (curve, step), (end, last) = (call.args for call in recorder.return_value.log_metrics.call_args_list)
    assert (step, last) == (2, 4)
    assert curve == measured[0]
    kept = {"kept_step": 2, "kept_validation_loss": 2.5, "kept_acceptance_rate": 0.5}
    assert end == {"seconds": 1.0, "steps": 4, "target_tokens": 0, **kept}
    about = recorder.call_args.kwargs
    assert about["tags"]["work"] == open_context(job).resume.name
    assert (about["params"]["seed"], about["params"]["model_seed"]) == (20261124153400, 2**64 - 1)
    recorder.return_value.log_artifact.assert_called_once_with(job.folder / "README.md")
    assert (job.folder / "README.md").is_file()
    assert inputs_of(recorder) == []


@pytest.mark.usefixtures("measured")
def test_the_data_sets_of_a_training_are_recorded_as_dvc_knows_them(job: TrainingJob, recorder: MagicMock) -> None:
    lock = "stages: {prepare: {outs: [{path: data/toy/corpus, md5: abc.dir, size: 9, nfiles: 2}]}}"
    Path("dvc.lock").write_text(lock, encoding="utf-8")
    train_stage(job, toy_spec)
    assert [(data.name, data.digest, data.context) for data in inputs_of(recorder)] == [
        ("data/toy/corpus/train.jsonl", "abc.dir", "training"),
        ("data/toy/corpus/validation.jsonl", "abc.dir", "validation"),
    ]


@pytest.mark.usefixtures("measured")
def test_equal_runs_save_equal_folders(job: TrainingJob, capsys: pytest.CaptureFixture[str]) -> None:
    def saved() -> dict[str, bytes]:
        train_stage(job, toy_spec)
        return {file.name: file.read_bytes() for file in PATHS.model("small").iterdir()}

    first = saved()
    assert first == saved()
    assert "README.md" in first
    assert PATHS.training_log("small").read_text() == "step,loss,validation_loss\n2,2.25,\n4,2.0,2.5\n"
    assert "4 steps in 1 s, step 2 kept, validation loss 2.500" in capsys.readouterr().err


def test_a_saved_model_writes_texts_as_long_as_it_was_trained_on(job: TrainingJob, measured: list[dict[str, float]]) -> None:
    """A decoder that is deeper than its encoder, which transformers caches right only where the configuration says so."""
    train_stage(job, toy_spec)
    model = AutoModelForSeq2SeqLM.from_pretrained(PATHS.model("small"))
    model.generation_config.eos_token_id = None
    assert model.generate(input_ids=torch.tensor([[5, 6, 1]])).shape == (1, 1 + 13)


@pytest.mark.usefixtures("measured")
def test_a_finished_seed_is_kept_and_another_is_trained(job: TrainingJob, capsys: pytest.CaptureFixture[str]) -> None:
    seeded = dataclasses.replace(job, seed=1)
    train_stage(seeded, toy_spec)
    weights = seeded.folder / "model.safetensors"
    written = weights.stat().st_mtime_ns
    record = read_training_record(seeded.folder)
    assert record is not None and (record.steps, record.examples) == (4, len(open_context(job).examples))
    capsys.readouterr()
    train_stage(seeded, toy_spec)
    assert "seed 1 is already trained" in capsys.readouterr().err
    assert weights.stat().st_mtime_ns == written
    # A log that was changed or removed is copied again from the folder of the model.
    curve = seeded.log_file.read_text(encoding="utf-8")
    seeded.log_file.write_text(curve.replace("2.25", "2.26"), encoding="utf-8")
    train_stage(seeded, toy_spec)
    said = capsys.readouterr().err
    assert f"warning: {seeded.log_file} is damaged (it differs from {seeded.folder / 'training.csv'}); it is made again" in said
    assert seeded.log_file.read_text(encoding="utf-8") == curve and "is already trained" in said
    seeded.log_file.unlink()
    train_stage(seeded, toy_spec)
    assert seeded.log_file.read_text(encoding="utf-8") == curve and "damaged" not in capsys.readouterr().err
    # Checkpoints are left where a run was ended before its record was whole.
    open_context(seeded).resume.mkdir()
    train_stage(seeded, toy_spec)
    assert "is already trained" not in capsys.readouterr().err
    assert weights.stat().st_mtime_ns > written and not open_context(seeded).resume.exists()
    (seeded.folder / "training.json").write_bytes(b"\xff")
    train_stage(seeded, toy_spec)
    assert f"warning: {seeded.folder} is damaged (training.json is not as it was written)" in capsys.readouterr().err
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    train_stage(seeded, toy_spec)
    assert weights.read_bytes() == whole  # damaged weights are trained again
    train_stage(dataclasses.replace(seeded, training=dataclasses.replace(job.training, learning_rate=0.002)), toy_spec)
    assert weights.stat().st_mtime_ns > written


def test_a_model_that_is_no_better_than_a_constant_is_warned_of_and_its_card_says_so(
    job: TrainingJob, measured: list[dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that has learned nothing writes one text for everything."""
    train_stage(dataclasses.replace(job, checked=20), toy_spec)
    printed = capsys.readouterr()
    assert "toy/small: bleu" in printed.err and "on 20 held-out inputs (constant " in printed.err
    warnings = [line for line in printed.err.splitlines() if line.startswith("warning: toy: the small model")]
    assert any("is not shown to be better than giving one constant output" in line for line in warnings)
    card = (PATHS.model("small") / "README.md").read_text(encoding="utf-8")
    assert "greedy outputs: `bleu" in card and "the model is not shown to be better than giving one constant output" in card
    record = read_training_record(PATHS.model("small"))
    assert record is not None and [f"warning: toy: {one}" for one in record.warnings] == warnings
    assert stage_warnings(PATHS) == record.warnings  # which the report repeats
    train_stage(job, toy_spec)
    assert "held-out inputs" not in capsys.readouterr().err


def test_a_validation_loss_that_rose_is_warned_of(job: TrainingJob) -> None:
    rows = {2: {"validation_loss": 2.0}, 3: {"loss": 1.5}, 4: {"loss": 1.0, "validation_loss": 2.5}}
    last, best = (TrainingResult(1.0, 1.0, 0, steps=4, kept=step, measured={}, log=rows) for step in (4, 2))
    assert stage._warnings(job, best, None) == []
    [warning] = stage._warnings(job, last, None)
    assert warning.startswith("the validation loss of the small model rose from 2.000 at step 2 to 2.500; try fewer steps")
    chosen = dataclasses.replace(job, training=dataclasses.replace(job.training, choose_by="quality"))
    assert stage._warnings(chosen, last, None) == [], "another measure kept these weights"


def test_a_model_that_scores_given_texts_is_not_asked_for_outputs(
    job: TrainingJob, measured: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks.training.stage.check_outputs", lambda *_: pytest.fail("outputs were asked for"))
    train_stage(dataclasses.replace(job, checked=20, metric="perplexity"), toy_spec)
    assert "validation loss" in capsys.readouterr().err
    assert (PATHS.model("small") / "README.md").is_file()


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_keeps_its_number_format_unless_it_is_trained(job: TrainingJob, dtype: torch.dtype) -> None:
    large, small = PATHS.model("large"), PATHS.model("small")
    save_model(load_model(large).to(dtype), load_tokenizer(PATHS.tokenizer), large)
    from_large = dataclasses.replace(TINY, pretrained=str(large))
    train_stage(dataclasses.replace(job, model=from_large, training=TrainingSettings(steps=0), checked=20), toy_spec)
    saved = load_model(small, dtype="auto")
    assert same_weights(saved, load_model(large, dtype="auto")) and {weight.dtype for weight in saved.parameters()} == {dtype}
    assert (large / "model.safetensors").stat().st_size == (small / "model.safetensors").stat().st_size
    assert float(PATHS.training_log("small").read_text(encoding="utf-8").splitlines()[1][3:]) > 0
    trained = open_context(dataclasses.replace(job, model=from_large)).model
    assert {weight.dtype for weight in trained.parameters()} == {torch.float32}


@pytest.mark.usefixtures("recorder")
def test_without_steps_the_model_is_measured_and_saved_as_it_is(
    job: TrainingJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DeepSpeed is not started, and the folder says what was done."""
    monkeypatch.setattr("tasks.training.loop.create_engine", lambda *_: pytest.fail("an engine was started"))
    start = dataclasses.replace(TINY, pretrained=str(PATHS.model("large")))
    taken = dataclasses.replace(job, model=start, training=TrainingSettings(steps=0), checked=20)
    train_stage(taken, toy_spec)
    saved, began = (load_model(PATHS.model(name)).state_dict() for name in ("small", "large"))
    assert all(torch.equal(saved[name], weight) for name, weight in began.items())
    record = read_training_record(PATHS.model("small"))
    assert record is not None and (record.steps, record.examples, record.target_tokens) == (0, 0, 0)
    card = (PATHS.model("small") / "README.md").read_text(encoding="utf-8")
    assert "initialised from `models/toy/large`. It was taken as it is, without training." in card
    assert "optimiser steps: 0: the weights are those that it was initialised from" in card and "training text" not in card
    log = PATHS.training_log("small").read_text(encoding="utf-8").splitlines()
    assert log[0] == "step,loss,validation_loss" and log[1].startswith("0,,") and float(log[1][3:]) > 0
    printed = capsys.readouterr()
    assert "parameters, taken as it is, validation loss" in printed.err and "on 20 held-out inputs" in printed.err


def test_batches_follow_another_file_of_the_same_inputs(job: TrainingJob, tmp_path: Path) -> None:
    longer = [Example(one.source, (" ".join(one.references * 2),)) for one in read_jsonl(job.train_file)]
    write_jsonl(longer, tmp_path / "longer.jsonl")
    like = dataclasses.replace(job, batched_like=tmp_path / "longer.jsonl")
    found = open_context(like).examples
    assert found.batched_like is not None and [*map(len, found.batched_like.targets)] > [*map(len, found.targets)]
    assert open_context(like).resume != open_context(job).resume
    write_jsonl(longer[:-1], tmp_path / "longer.jsonl")
    assert open_context(like).examples.batched_like is None
