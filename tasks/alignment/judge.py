"""Trains a judge: a linear head that says which tokens are good enough (Judge Decoding: Bachmann et al., arXiv 2501.19309).

It reads the large model's last hidden state after a token, which tells whether the large model holds the token for an error.
Neither model changes. The labels are those of `judge_labels`, where the paper has errors marked by hand.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from tasks.alignment.acceptance_head import area_under_curve
from tasks.alignment.judge_labels import JudgedTokens, MismatchLabeller, References
from tasks.alignment.settings import AlignSettings
from tasks.corpora.example import Example, read_jsonl
from tasks.decoding.decoder import AUTO, REFERENCE
from tasks.decoding.runtimes.choose import open_decoder
from tasks.errors import InputError
from tasks.models.extras import Judge, add_judge, state_width
from tasks.models.prompting import encode_sources
from tasks.training import distributed
from tasks.training.context import TrainingContext, reference_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PENALTY = 1e-2
"""Weight of half the squared norm of a judge beside its loss, over states of unit variance."""
_ITERATIONS = 500
_NEVER = -1e4
"""A logit whose probability is 0 in every format."""
_HELD_OUT = 128
"""Held-out texts by which a judge is measured, at most."""


def judge_trainer(
    context: TrainingContext, settings: AlignSettings, large: PreTrainedModel, vocabulary: int
) -> Callable[[], dict[str, float]]:
    """Return a function that adds a trained judge to the drafter of `context`, once the drafter has learned.

    It gives, of the mismatches in held-out texts, `judge_good`, the share that is good, and `judge_auc`, the probability that
    the judge rates a good one above a bad one; either only where it is defined.

    Raises:
        InputError: no input of the calibration set has a reference.
    """
    paths = context.job.paths
    texts = list({example.source: example for example in read_jsonl(paths.control_set)}.values())
    if not texts:
        raise InputError(f"align.judge scores texts against references, and {paths.control_set} has none; set it to 0")
    rng = random.Random(f"judge {settings.seed}")  # noqa: S311 (a choice, not a secret)
    chosen = rng.sample(texts, min(settings.judge, len(texts)))
    held_out = [example for example in read_jsonl(reference_file(context.job)) if example.references][:_HELD_OUT]

    def train() -> dict[str, float]:
        # The fused runtime records graphs for shapes that decoding has, which these batches do not.
        runtime = AUTO if large.device.type == "cpu" else REFERENCE
        decoder = open_decoder(large.eval(), "large", vocabulary, runtime)
        drafter, limit = context.model.eval(), context.job.text.max_target_tokens
        labeller = MismatchLabeller(drafter, decoder, vocabulary, limit, context.tokenizer)
        # Every process labels the same texts: sharing them out would save little beside the training before.
        learned, kept = (_labelled(labeller, some, context, settings) for some in (chosen, held_out))
        judge = add_judge(drafter, state_width(large))
        if not fit(judge, learned) and distributed.is_main():
            kinds = f"{int(learned.good.sum())} of {len(learned.good)} mismatches are good"
            print(f"warning: {paths.task}: {kinds}, so that the judge learns nothing and accepts nothing", file=sys.stderr)
        return measured(judge, kept)

    return train


def _labelled(
    labeller: MismatchLabeller, texts: Sequence[Example], context: TrainingContext, settings: AlignSettings
) -> JudgedTokens:
    sources = encode_sources(context.tokenizer, [text.source for text in texts], context.job.text)
    references = References([text.references for text in texts], context.job.metric, settings.judge_tolerance)
    return labeller.label(sources, references)


def fit(judge: Judge, tokens: JudgedTokens) -> bool:
    """Fit a judge, in place, to its optimum; return whether there was something to learn.

    With tokens of one kind alone there is not, and the judge then accepts nothing. The optimum is unique and needs neither a
    rate nor a number of steps: the loss is convex, and the penalty keeps it from lying at infinity.
    """
    if not bool(tokens.good.any()) or bool(tokens.good.all()):
        torch.nn.init.zeros_(judge.weight)
        torch.nn.init.constant_(judge.bias, _NEVER)
        return False
    states, good = tokens.states.double().cpu(), tokens.good.cpu()
    mean, scale = states.mean(0), states.std(0, correction=0).clamp_min(1e-6)
    inputs = (states - mean) / scale
    weight, bias = (torch.zeros(size, dtype=torch.float64, requires_grad=True) for size in (len(mean), 1))
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=_ITERATIONS, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = balanced_loss(inputs @ weight + bias, good) + _PENALTY / 2 * weight.square().sum()
        torch.autograd.backward(loss)
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with torch.no_grad():
        judge.weight.copy_(weight / scale)
        judge.bias.copy_(bias - (weight * mean / scale).sum())
    return True


def balanced_loss(logits: Tensor, good: Tensor) -> Tensor:
    """Return the cross-entropy of σ(logits) with the labels, in which good and bad tokens weigh one half each together.

    Args:
        logits: (tokens,).
        good: bool (tokens,), with both values.
    """
    return (functional.softplus(-logits[good]).mean() + functional.softplus(logits[~good]).mean()) / 2


def measured(judge: Judge, tokens: JudgedTokens) -> dict[str, float]:
    """Return `judge_good` and `judge_auc` of a judge on labelled tokens, each where it is defined."""
    if not len(tokens.good):
        return {}
    found = {"judge_good": float(tokens.good.double().mean())}
    with torch.no_grad():
        area = area_under_curve(judge(tokens.states.to(judge.weight.device)).cpu(), tokens.good.cpu().double())
    return found if area is None else {**found, "judge_auc": area}
