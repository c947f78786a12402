"""Which tokens a draft vocabulary holds, and what a drafter of either arm reports of it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.alignment.settings import AlignSettings
from tasks.alignment.spec import most_written, prune_drafter
from tasks.corpora.example import write_jsonl
from tasks.errors import InputError
from tasks.models.pruned_head import pruned_head
from tasks.models.settings import ModelSettings
from tasks.paths import TaskPaths
from tasks.training.stage import TrainingContext, open_context
from tests.calibration import examples, tiny
from tests.training import job_of

PATHS = TaskPaths("toy")
SHAPE = ModelSettings(d_model=16, d_ff=16, d_kv=8, heads=2, encoder_layers=1, decoder_layers=1)


def test_the_most_written_tokens_come_after_the_special_ones() -> None:
    texts = [[7, 7, 7, 1], [5, 9, 9, 1], [4, 5, 1]]
    assert most_written(texts, 3, 12, {0, 1, 99}) == [0, 1, 7]
    assert most_written(texts, 5, 12, {0, 1}) == [0, 1, 5, 7, 9]
    # Of equally frequent tokens the lower one, also of those that never occur.
    assert most_written(texts, 8, 12, {0, 1}) == [0, 1, 2, 3, 4, 5, 7, 9]
    assert most_written(texts, 12, 12, {0, 1}) == list(range(12))


@pytest.mark.parametrize(
    ("size", "message"),
    [(13, "draft_vocabulary is 13, but the tokenizer has 12 tokens; lower it"), (2, "has 2 special tokens, which come first")],
)
def test_a_size_that_does_not_fit_is_one_line(size: int, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        most_written([[7]], size, 12, {0, 1})
    assert "\n" not in str(caught.value)


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], TrainingContext]:
    """Opens the drafter of an arm: the large model writes other text than the references hold."""
    monkeypatch.chdir(tmp_path)
    tokenizer: Any = tiny("t5")[1]
    tokenizer.save_pretrained(PATHS.tokenizer)
    PATHS.calibration.mkdir(parents=True)
    written = [dataclasses.replace(one, references=("red blue red",)) for one in examples(0, 8)]
    write_jsonl(written, PATHS.calibration_set)
    write_jsonl([*written[:2], *examples(8, 9)], PATHS.held_out_calibration)
    write_jsonl(examples(0, 8), PATHS.control_set)

    def opened(arm: str) -> TrainingContext:
        stage, file = ("align", PATHS.calibration_set) if arm == "aligned" else ("control", PATHS.control_set)
        files = {"train_file": file, "held_out_file": PATHS.held_out_calibration}
        return open_context(job_of(PATHS, SHAPE, AlignSettings(), name=arm, stage=stage, **files))

    return opened


def test_both_arms_predict_what_the_large_model_writes(
    opened: Callable[[str], TrainingContext], capsys: pytest.CaptureFixture[str]
) -> None:
    heads = {}
    written = opened("aligned")
    needed = {*written.tokenizer.all_special_ids, *written.examples.targets[0]}
    for arm in ("aligned", "unaligned"):
        context = opened(arm)
        prune_drafter(context, len(needed), 64)
        heads[arm] = pruned_head(context.model)
    aligned, control = heads["aligned"], heads["unaligned"]
    assert aligned.tokens.tolist() == control.tokens.tolist()
    kept = set(aligned.tokens.tolist())
    assert kept == needed
    assert aligned.coverage["calibration"] == aligned.coverage["targets"] == control.coverage["calibration"] == 1.0
    assert aligned.coverage["validation"] == control.coverage["validation"] < 1.0
    references = [token for text in opened("unaligned").examples.targets for token in text]
    assert control.coverage["targets"] == sum(token in kept for token in references) / len(references) < 0.9
    printed = capsys.readouterr().err
    assert f"toy: control unaligned: draft vocabulary of {len(kept)} tokens, with 100.00% of the large model's" in printed
