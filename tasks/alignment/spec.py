"""An alignment from its settings: where it starts, the tokens it predicts, its batches, its loss, and its acceptance."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.alignment.calibration_set import StoredTopLogits
from tasks.alignment.losses import DivergenceLoss, divergence
from tasks.alignment.settings import AlignSettings
from tasks.console import log
from tasks.decoding.decoder import Rows
from tasks.errors import InputError
from tasks.models.checkpoints import load_model
from tasks.models.pair import check_architectures, check_pair, vocabulary_size
from tasks.models.pruned_head import PrunedHead, prune_head
from tasks.models.settings import ModelSettings
from tasks.models.tokenizers import load_tokenizer
from tasks.training import distributed
from tasks.training.data import DatasetSource, JsonlDataset, TokenDataset
from tasks.training.loop import evaluation_batch
from tasks.training.objective import target_log_probs
from tasks.training.stage import TrainingContext, TrainingSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_MOST_KEPT = 2**30
"""Largest size, in bytes, of the large model's distributions to keep in memory; beyond it, the model runs again each time."""
CONTROL = (
    "It was trained on the first reference of the corpus for each input of the calibration set, by cross-entropy: the control "
    "of the aligned drafter, equal to it in start, steps, optimiser, batches and seed."
)
"""The sentence in the card of a drafter that is the control of an alignment."""
_LOSSES = {
    "sequence": "on the large model's outputs, by cross-entropy (BiLD: Kim et al., 2023, section 3.5.1)",
    "forward_kl": "on the large model's predictions, by KL(p|q) at each position (DistillSpec: Zhou et al., 2023)",
    "reverse_kl": "on the large model's predictions, by KL(q|p) at each position (DistillSpec: Zhou et al., 2023)",
    "jensen_shannon": "on the large model's predictions, by the Jensen-Shannon divergence of weight {beta:g} at each position "
    "(GKD: Agarwal et al., 2024; DistillSpec: Zhou et al., 2023)",
    "total_variation": "on the large model's predictions, by the total variation distance at each position, which is 1 minus "
    "the acceptance rate (DistillSpec: Zhou et al., 2023)",
}


def describe_method(settings: AlignSettings) -> str:
    """Return one sentence on the loss for the model card, with its papers."""
    return f"It was trained {_LOSSES[settings.loss].format(beta=settings.beta)}."


def start_model(settings: AlignSettings, small: ModelSettings, fine_tuned: Path) -> ModelSettings:
    """Return the model that alignment starts from: the small model's own start, or the fine-tuned small model.

    Raises:
        InputError: the settings name the fine-tuned model, which is missing.
    """
    if settings.start == "pretrained":
        return small
    if not fine_tuned.is_dir():
        raise InputError(f"align.start is fine_tuned, but there is no model at {fine_tuned}; run stage finetune (dvc repro)")
    return dataclasses.replace(small, pretrained=str(fine_tuned))


def alignment_spec(context: TrainingContext, settings: AlignSettings, large_folder: Path) -> TrainingSpec:
    """Return batches, loss and measurements for the drafter of `context`.

    Raises:
        InputError: the two models do not make a pair, or stored predictions are missing for these texts.
    """
    large = load_model(large_folder, context.device, "auto", spread=True)
    check_architectures(context.model, large)
    # 1. The pair, and the tokens that are compared.
    check_pair(context.tokenizer, load_tokenizer(large_folder), "the drafter", str(large_folder))
    vocabulary = vocabulary_size(context.tokenizer, context.model, large)
    if settings.draft_vocabulary:
        prune_drafter(context, settings.draft_vocabulary, vocabulary)
    # 2. The text of each step, and with it the large model's predictions where they are stored.
    if settings.reads_stored:
        folder = context.job.paths.calibration
        for dataset, name in ((context.examples, "calibration"), (context.held_out, "validation")):
            dataset.stored = StoredTopLogits.open(folder, name, dataset.targets)
    # 3. The loss; hard labels are the stage's own cross-entropy of the text.
    loss = None
    if settings.loss != "sequence":
        live = large if settings.reference == "live" else None
        loss = DivergenceLoss(divergence(settings.loss, settings.beta), vocabulary, live)
    measure = HeldOutAcceptance(large, context.held_out, vocabulary, context.device)
    return TrainingSpec(DatasetSource(context.examples, context.job.training), loss, measure)


class HeldOutAcceptance:
    """An `Evaluator` of acceptance by the large model, along its own held-out outputs.

    The acceptance rate α is E Σ min(p, q) over prefixes generated by p (Leviathan et al., 2023, Definition 3.2, Corollary 3.6).
    Here the prefixes are the large model's greedy outputs from the held-out part of the calibration set, so that both models
    only score given texts. `acceptance_rate` is the mean of Σ min(p, q) over all target positions, where p and q are the
    softmaxes of the large model and the drafter at temperature 1; `acceptance_greedy` is the share of positions at which both
    have the same top token. The estimate is for monitoring and for choosing weights; the sweep measures the finished pair.
    """

    def __init__(self, large: PreTrainedModel, held_out: TokenDataset, vocabulary: int, device: torch.device) -> None:
        """Take the large model. The first measurement runs it along the texts, and keeps its distributions if they are small.

        Args:
            large: The model that generated the targets of `held_out`, on `device`; of the drafter's architecture.
            held_out: The texts.
            vocabulary: Number of ids that the tokenizer knows; logits beyond it are padding and cut off.
            device: Device of the drafter.
        """
        self._held_out, self._vocabulary, self._device = held_out, vocabulary, device
        self._large = large
        # A prompt of a decoder-only model may be ten times as long as another; padding would cost as much as text.
        lengths = [len(source) + len(target) for source, target in zip(held_out.sources, held_out.targets, strict=True)]
        self._order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self._kept: list[Tensor] | None = None

    def __call__(self, model: PreTrainedModel) -> dict[str, float]:
        """Return `{"acceptance_rate": …, "acceptance_greedy": …}` of a model in evaluation mode, in 0…1 up to rounding."""
        sums = {name: sum(values) for name, values in self.by_text(model).items()}
        return {name: sums[name] / sums["positions"] for name in ("acceptance_rate", "acceptance_greedy")}

    def by_text(self, model: PreTrainedModel) -> dict[str, list[float]]:
        """Return the sums of both over the positions of each text, and its `positions`; shortest texts first."""
        found: dict[str, list[Tensor]] = {"acceptance_rate": [], "acceptance_greedy": [], "positions": []}
        for p, q in zip(self._references(), self._distributions(model), strict=True):
            # Σ min(p, q) is the probability that p accepts a token drawn from q; each (positions,).
            found["acceptance_rate"].append(torch.minimum(p, q).sum(-1).cpu())
            found["acceptance_greedy"].append((p.argmax(-1) == q.argmax(-1)).cpu())
            found["positions"].append(torch.ones(len(p)))
        lengths = [len(self._held_out.targets[index]) for index in self._order]
        return {
            name: [float(text.sum(dtype=torch.float64)) for text in torch.split(torch.cat(parts), lengths)]
            for name, parts in found.items()
        }

    def _references(self) -> Iterable[Tensor]:
        """Return the large model's distributions by batch."""
        if self._kept is None and 4 * self._vocabulary * sum(map(len, self._held_out.targets)) <= _MOST_KEPT:
            self._kept = list(self._distributions(self._large))
        return self._distributions(self._large) if self._kept is None else self._kept

    # Not in inference mode: ZeRO stage 3 gathers weights here, which training needs afterwards.
    @torch.no_grad()
    def _distributions(self, model: PreTrainedModel) -> Iterator[Tensor]:
        """Yield the softmaxes (positions, vocabulary) of each batch of the texts, in the order of their lengths."""
        model.eval()
        texts = self._held_out
        size = evaluation_batch(max(map(len, texts.targets)), self._vocabulary)
        for begin in range(0, len(texts), size):
            batch = texts.batch(self._order[begin : begin + size])
            yield target_log_probs(model, batch.to(self._device), self._vocabulary).exp()


# The draft vocabulary of a task: special tokens, and those that the large model writes most in the calibration set. Both arms
# choose from the same texts, so that their drafters predict the same tokens.


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
