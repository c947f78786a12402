"""Contradictions between the sections of params.yaml are refused before anything is trained."""

import copy
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.config import load
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.registry import GREEDY_ONLY, METHODS, T5_ONLY
from tasks.errors import InputError
from tests.architectures import pair_of

ROOT = Path(__file__).parents[2]
Change = Callable[[dict[str, Any]], object]
TASK = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["tasks"]["translation"]
TASK["sweep"]["grid"] = [{"method": "bild", "values": {}}]


def loaded(path: Path, change: Change) -> None:
    """Load params.yaml with its first task alone, changed, and with one entry in its grid."""
    task = copy.deepcopy(TASK)
    change(task)
    path.write_text(yaml.safe_dump({"active": {"translation": "data"}, "tasks": {"translation": task}}), encoding="utf-8")
    load(path)


def grid(method: str, **values: list[Any]) -> Change:
    return lambda task: task["sweep"].update(grid=[{"method": "bild", "values": {}}, {"method": method, "values": values}])


def alone(method: str, **values: list[Any]) -> Change:
    return under("sweep", grid=[{"method": method, "values": values}])


def both(*changes: Change) -> Change:
    return lambda task: [change(task) for change in changes]


def models(which: tuple[str, ...] = ("small", "large"), **changes: Any) -> Change:
    return lambda task: [task["models"][name].update(changes) for name in which]


def from_large(**layers: Any) -> Change:
    return models(("small",), from_large=layers)


def under(*sections: str, **changes: Any) -> Change:
    """Change settings of a section."""
    return lambda task: functools.reduce(dict.__getitem__, sections, task).update(changes)


def perplexity(*changes: Change) -> Change:
    """A task of the metric perplexity, as it should be, with changes."""

    def change(task: dict[str, Any]) -> None:
        task["metric"] = "perplexity"
        bild = {"method": "bild", "values": {"fallback_threshold": [0.1], "rollback_threshold": [math.inf]}}
        task["sweep"].update(sampling={"temperature": 1.0}, grid=[bild, {"method": "token_cascade"}])
        both(*changes)(task)

    return change


LLAMA = models(architecture="llama", d_kv=32)
STORED = under("align", loss="forward_kl", reference="stored")
CONTRADICTIONS: list[tuple[Change, str]] = [
    (lambda task: task.update(metric="pass_at_1"), "metric: pass_at_1 runs the models' outputs as programs on this machine"),
    (perplexity(under("sweep", sampling={"temperature": 0.0})), "sweep: with the metric perplexity sampling must be"),
    (perplexity(under("sweep", sampling={"temperature": 1.0, "top_p": 0.9})), "sweep: with the metric perplexity sampling"),
    (
        perplexity(under("sweep", samples=2)),
        "sweep: samples and drafter_sampling are of drawn tokens, and a perplexity draws none",
    ),
    (perplexity(under("sweep", temperatures=[0.5])), "sweep: temperatures is set, but a perplexity is of temperature 1 alone"),
    (perplexity(under("finetune", "large", choose_by="quality")), "finetune.large: choose_by is quality, which is of outputs;"),
    (perplexity(under("align", choose_by="quality")), "align: choose_by is quality, which is of outputs; set it to validatio"),
    (perplexity(under("align", draft_vocabulary=200)), "align: draft_vocabulary is 200, so that all other tokens have no pro"),
    (perplexity(grid("speculative")), "sweep.grid.0: bild has a rollback_threshold of 2, but no token of a given text is repl"),
    (perplexity(alone("speculative")), "sweep.grid.0: speculative scores no given"),
    (perplexity(alone("bild", rollback_threshold=[math.inf], drafter=["copy"])), "sweep.grid.0: bild has the drafter copy, w"),
    (under("calibrate", texts="references"), "align: loss is sequence, which reads the text alone, but"),
    (models(("large",), architecture="llama"), "models: small is t5 but large is llama"),
    (both(models(architecture="gpt2"), under("text", max_source_tokens=1000)), "text: max_source_tokens and"),
    (under("finetune", "large", steps=0), "finetune.large: steps is 0, but models.large starts from random weights; set its"),
    (
        under("align", unaligned="as_it_is", steps=0),
        "align: steps is 0, so that no drafter learns anything; set",
    ),
    (under("align", unaligned="as_it_is", start="pretrained"), "align: unaligned is as_it_is, but the small model starts from"),
    (models(("large",), pretrained="a/b.gguf"), "tokenizer: models.large.pretrained is a GGUF file, which has a tokenizer of"),
    (under("text", chat_template=True), "text: chat_template is true, but a tokenizer that is trained here has no template;"),
    (both(under("text", chat_template=True), under("tokenizer", pretrained="chat")), "text: chat_template is true,"),
    (under("finetune", "large", precision="float16"), "finetune.large: precision is float16, in which the activations of a t5"),
    (under("align", deepspeed="own.json"), "align: deepspeed is own.json; it must be a file in data/deepspeed, whose changes"),
    (under("finetune", "small", trunk="frozen", draft_heads=2), "finetune.small: trunk is frozen, but the model starts from"),
    (both(models(architecture="llama"), under("finetune", "large", draft_heads=2)), "finetune.large: exit_loss, draft_heads"),
    (under("finetune", "large", exit_loss="first_last", exit_layer=6), "finetune.large: exit_layer is 6, but the decoder has"),
    (under("finetune", "small", exit_classifier=True), "finetune.small: exit_classifier is set, but the decoder has one layer"),
    (both(STORED, under("calibrate", top_logits=0)), "align: reference is stored, but calibrate.top_logits is 0"),
    (under("calibrate", keep_over_long=True), "calibrate: keep_over_long keeps texts without an end"),
    (from_large(layers=[0, 6]), "models.small.from_large: layers names 6, but the large model has 6"),
    (from_large(layers=[0], encoder_layers=[2]), "models.small.from_large: encoder_layers names 2, but the large model has 2"),
    (both(LLAMA, from_large(layers=[0], encoder_layers=[0])), "models.small.from_large names encoder_layers, but"),
    (both(LLAMA, from_large(layers=[0], share_encoder=True)), "models.small.from_large names share_encoder, but models.large,"),
    (both(from_large(layers=[0]), under("align", start="fine_tuned")), "align: start is fine_tuned"),
    (models(("large",), from_large={"layers": [0]}), "models.large: from_large is for models.small"),
    (both(STORED, under("align", draft_vocabulary=30), under("calibrate", top_logits=30)), "align: draft_vocabulary"),
    (under("align", draft_vocabulary=100_000), "align: draft_vocabulary is 100000, but tokenizer.vocabulary"),
    (under("calibrate", top_logits=100_000), "calibrate: top_logits is 100000, but tokenizer.vocabulary"),
    (both(grid("beam_large", beams=[2]), under("sweep", sampling={"temperature": 1.0})), "sweep.grid.1: beam_large draws no"),
    (both(models(architecture="llama"), grid("calm")), "sweep.grid.1: calm needs the layers of a t5"),
    (
        under("sweep", grid=[{"method": "beam_large"}], seed_methods=["beam_large"], temperatures=[0.5]),
        "sweep: temperatures has 0.5, but no method of the grid draws tokens; add one or remove the value",
    ),
    (grid("calm", confidence=["softmax", "classifier"]), "sweep.grid.1: calm with confidence classifier needs a classifier"),
    (grid("speculative", drafter=["small", "heads"]), "sweep.grid.1: the drafter heads needs heads"),
    (both(models(("large",), decoder_layers=1), grid("bild", drafter=["early_layer"])), "sweep.grid.1: the drafter early"),
    (under("sweep", grid=[]), "sweep: grid is empty, so that no method would be measured"),
    (lambda task: task["models"].update(small=task["models"]["large"]), "models: small is as large as large"),
    (models(pretrained="folder"), "models: small and large are both folder"),
]


@pytest.mark.parametrize(("change", "words"), CONTRADICTIONS)
def test_a_contradiction_is_named_with_its_place(change: Change, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        loaded(tmp_path / "params.yaml", change)
    assert f"params.yaml: tasks.translation.{words}" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda task: task.update(metric="pass_at_1", run_generated_code=True),
        perplexity(),
        perplexity(under("align", loss="forward_kl"), under("calibrate", texts="references")),
        grid("speculative", drafter=["small", "early_layer", "copy", "random"]),
        both(models(("large",), pretrained="folder"), under("finetune", "large", steps=0), under("finetune", "small", steps=0)),
        both(under("finetune", "large", draft_heads=2), grid("speculative", drafter=["heads"])),
        both(under("finetune", "large", exit_classifier=True), grid("calm", confidence=["classifier"])),
        # A checkpoint decides what it can do, and nothing here knows it.
        both(models(("large",), pretrained="folder", architecture="llama"), grid("calm", confidence=["classifier"])),
        both(
            models(("small",), pretrained="folder"),
            models(("large",), pretrained="other"),
            under("finetune", "large", trunk="frozen", draft_heads=2),
            grid("bild", drafter=["heads"]),
        ),
        both(models(architecture="llama"), grid("speculative", drafter=["early_layer"])),
        # Of its own shape the small model would make no pair.
        both(
            models(("large",), architecture="llama"),
            models(("small",), architecture="gpt2", from_large={"layers": [0, 5]}),
            under("align", draft_vocabulary=200, start="pretrained"),
        ),
    ],
)
def test_what_fits_together_is_accepted(change: Change, tmp_path: Path) -> None:
    loaded(tmp_path / "params.yaml", change)


def refused(architecture: str, temperature: float) -> set[str]:
    """The methods whose construction refuses this pair or this sampling, at their default settings."""
    found = set()
    request = Request(8, SamplingSettings(temperature=temperature), 1)
    for name, spec in METHODS.items():
        try:
            spec.make(spec.settings(), pair_of(architecture), request)
        except InputError:
            found.add(name)
    return found


def test_the_lists_are_those_of_the_methods() -> None:
    assert refused("t5", 0.0) == set()
    assert refused("t5", 1.0) == set(GREEDY_ONLY)
    assert refused("llama", 0.0) == set(T5_ONLY)
