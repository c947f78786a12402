"""Chooses the draft vocabulary of a task: special tokens, and those that the large model writes most in the calibration set.

Both arms choose from the same texts, so that their drafters predict the same tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from tasks.console import log
from tasks.decoding.decoder import Rows
from tasks.errors import InputError
from tasks.models.pruned_head import PrunedHead, prune_head
from tasks.training import distributed
from tasks.training.data import JsonlDataset
from tasks.training.stage import TrainingContext

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def prune_drafter(context: TrainingContext, size: int, vocabulary: int) -> None:
    """Give the drafter of `context` a draft vocabulary of `size` tokens, in place, and log what it covers.

    Raises:
        InputError: there are not so many tokens, or more special ones.
    """
    job, model = context.job, context.model
    written = context.examples.targets
    if job.train_file != job.paths.calibration_set:
        decoder_only = not model.config.is_encoder_decoder
        written = JsonlDataset(job.paths.calibration_set, context.tokenizer, job.text, decoder_only=decoder_only).targets
    head = prune_head(model, most_written(written, size, vocabulary, special_tokens(context.tokenizer, model)))
    texts = {"calibration": written, "validation": context.held_out.targets, "targets": context.examples.targets}
    head.coverage = {name: share_inside(rows, head) for name, rows in texts.items()}
    if distributed.is_main():
        log.info(
            "%s: %s: draft vocabulary of %d tokens, with %.2f%% of the large model's tokens in the calibration set, %.2f%% of "
            "those held out, and %.2f%% of the tokens to learn from; others are left out of the loss",
            job.paths.task,
            job.label,
            head.rows,
            *(100 * head.coverage[name] for name in texts),
        )


def special_tokens(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> set[int]:
    """Return the special tokens of a tokenizer, and all tokens with which the model may end a text."""
    special = {int(token) for token in tokenizer.all_special_ids}
    for config in (model.config, model.generation_config):
        ends = getattr(config, "eos_token_id", None)
        special |= {ends} if isinstance(ends, int) else set(ends or ())
    return special


def most_written(texts: Iterable[Sequence[int]], size: int, vocabulary: int, always: Collection[int]) -> list[int]:
    """Return `size` ids below `vocabulary`: those of `always`, then the most frequent of the texts; ascending.

    Of equally frequent ones the lower ids are taken, which are the more common pieces of most tokenizers. The same order fills
    up the vocabulary where the texts have fewer different tokens.

    Raises:
        InputError: `size` is more than `vocabulary`, or leaves no room beside `always`.
    """
    always = {token for token in always if token < vocabulary}
    if size > vocabulary:
        raise InputError(f"align.draft_vocabulary is {size}, but the tokenizer has {vocabulary} tokens; lower it")
    if size <= len(always):
        raise InputError(
            f"align.draft_vocabulary is {size}, but the tokenizer has {len(always)} special tokens, which come first; raise it"
        )
    counts = Counter(token for text in texts for token in text)
    others = sorted(set(range(vocabulary)) - always, key=lambda token: (-counts[token], token))
    return sorted([*always, *others[: size - len(always)]])


def share_inside(texts: Rows, head: PrunedHead) -> float:
    """Return the share of the tokens of all texts that a pruned head predicts."""
    kept = set(head.tokens.tolist())
    return sum(token in kept for text in texts for token in text) / max(1, sum(map(len, texts)))
