"""Folders of tiny pairs, as the report stage writes them."""

import copy
import re
from pathlib import Path
from typing import Any

import torch

from tasks.decoding.pair_folder import PairManifest, write_pair_folder
from tasks.decoding.registry import configure_method
from tasks.models.checkpoints import save_model
from tasks.models.settings import TextSettings
from tests.architectures import FAMILIES, realistic
from tests.calibration import SOURCES, tiny
from tests.toys import VOCABULARY, toy_t5

POINT = configure_method("speculative", {"draft_length": 3})
LETTERS = ["ab cd", "ba dc fe", "abc def gh", "hg fed", "a c e g", "hb gd", "cab fad", "bed ace had", "dab hag", "gab fed cab"]
"""Sources for `letter_tokenizer`."""


def tiny_pair(folder: Path, max_target_tokens: int = 10) -> Path:
    """The folder of a tiny pair whose large model drafts for itself; writes it to `folder`/pair and gives that path.

    Its weights are random and large enough for different sources to give different texts; those of `tests.calibration.tiny`
    give padding alone.
    """
    model, tokenizer = copy.deepcopy(tiny("t5"))
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() > 1:
                weights.copy_(torch.randn(weights.shape, generator=random) * (1.0 if "shared" in name else 0.3))
    save_model(model, tokenizer, folder / "model")
    manifest = PairManifest(POINT, TextSettings(max_source_tokens=32, max_target_tokens=max_target_tokens), "toy")
    return write_pair_folder(folder / "pair", manifest, folder / "model", folder / "model", SOURCES[:8])


def letter_tokenizer() -> Any:
    """A tokenizer of single letters, as small as the vocabulary of the toys, with their special tokens."""
    from transformers import T5Tokenizer

    letters = [("▁", -1.0), *((letter, -2.0) for letter in "abcdefghijklmnopqrst")]
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *letters]
    assert len(vocabulary) == VOCABULARY
    return T5Tokenizer(vocab=vocabulary, extra_ids=0)


def agreeing_pair(folder: Path, architecture: str = "t5", measured: dict[str, Any] | None = None) -> Path:
    """A pair that agrees on many tokens, not on all, and whose texts end; writes it to `folder`/pair and gives that path.

    Args:
        folder: Also receives the two models, `small` and `large`.
        architecture: `t5`, or a name of `tests.architectures.FAMILIES`.
        measured: Of the manifest.
    """
    if architecture == "t5":
        models = {"small": toy_t5(1, 1, 1), "large": toy_t5(2, 3, 3, "gated-gelu")}
    else:
        models = {name: realistic(FAMILIES[architecture], layers) for name, layers in (("small", 1), ("large", 3))}
    for name, model in models.items():
        save_model(model, letter_tokenizer(), folder / name)
    manifest = PairManifest(POINT, TextSettings(max_source_tokens=16, max_target_tokens=24), "toy", measured=measured or {})
    return write_pair_folder(folder / "pair", manifest, folder / "large", folder / "small", LETTERS)


def uneven_pair(folder: Path, method: str) -> Path:
    """A pair of a drafter of 4 layers and a large model of 16 that decodes with `vanilla_small` or `vanilla_large`, whose texts
    differ; writes it to `folder`/pair and gives that path."""
    for name, model in (("small", toy_t5(1, 1, 4)), ("large", toy_t5(2, 3, 16, "gated-gelu"))):
        save_model(model, letter_tokenizer(), folder / name)
    return decoding_with(folder, method, 24, "large", "small")


def decoding_with(folder: Path, method: str, max_target_tokens: int, large: str, small: str) -> Path:
    """Writes models in `folder` as a pair with a method at its default settings to `folder`/pair; gives that path."""
    lengths = TextSettings(max_source_tokens=32, max_target_tokens=max_target_tokens)
    manifest = PairManifest(configure_method(method, {}), lengths, "toy", measured={"metric": "exact_match"})
    return write_pair_folder(folder / "pair", manifest, folder / large, folder / small, SOURCES[:2])


def code_of(out: Path) -> str:
    """The Python of the README of an exported pair."""
    [code] = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    compile(code, "README.md", "exec")
    return str(code)
