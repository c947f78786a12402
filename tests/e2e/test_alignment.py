"""Alignment with what other tests do not run through the stage: the losses are in tests/integration/test_alignment.py."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import copy_of, read_params, run_in, write_params

_STEPS = 6
WAYS: dict[str, dict[str, Any]] = {
    "draft vocabulary": {"loss": "jensen_shannon", "reference": "stored", "draft_vocabulary": 64},
    "early exit and heads": {"exit_loss": "weighted", "draft_heads": 1, "exit_classifier": True},
    "by quality, in two micro-batches, bfloat16": {"choose_by": "quality", "accumulation": 2, "precision": "bfloat16"},
    "ZeRO": {"optimizer": "adamw", "relative_rate": False, "zero_stage": 2},
}


@pytest.fixture(scope="module")
def clone(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished clone whose calibration set contains predictions of the large model."""
    copy = copy_of(finished, tmp_path_factory.mktemp("aligned"))
    params = read_params(copy)
    params["tasks"]["translation"]["calibrate"] = {"batch_size": 64, "max_repeats": 0, "top_logits": 4}
    write_params(copy, params)
    labelled = run_in(copy, sys.executable, "-m", "tasks.calibrate", "--task", "translation")
    assert labelled.returncode == 0, labelled.stderr[-3000:]
    return copy


@pytest.mark.slow
def test_every_way_of_alignment_trains_from_params_yaml(clone: Path) -> None:
    choosing = {"choose_by": "acceptance_rate", "evaluate_every": _STEPS // 2, "checkpoint_every": _STEPS // 2}
    for way, changes in WAYS.items():
        params = read_params(clone)
        task = params["tasks"]["translation"]
        task["align"] = {**task["align"], **choosing, "steps": _STEPS, **changes}
        if "exit_loss" in changes:  # which needs an inner layer
            task["models"]["small"]["decoder_layers"] = 2
        (clone / "way.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
        result = run_in(clone, sys.executable, "-m", "tasks.align", "--task", "translation", "--params", "way.yaml")
        assert result.returncode == 0, f"{way}: {result.stderr[-3000:]}"
        [line] = [line for line in result.stderr.splitlines() if line.startswith("translation/aligned/1: ")]
        assert f"{_STEPS} steps" in line, f"{way}: {line}"
        assert "acceptance rate" in line
