"""A drafter's output head over a draft vocabulary: the few tokens that the large model writes most.

The head of a small model with a large vocabulary costs more than its layers. A pruned head multiplies only the rows of the
draft vocabulary; every other token has the logit -infinity, a legal mask, so that lossless methods stay lossless. The weights
stay whole, tied to the embedding where they were: the drafter reads any token, and `transformers` loads the folder as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from tasks.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FILE = "draft_tokens.safetensors"
_COVERED = ("calibration", "validation", "targets")


class PrunedHead(torch.nn.Linear):
    """A linear head that predicts the tokens of a draft vocabulary alone."""

    tokens: Tensor
    """int64 (N,), ascending: the ids of the draft vocabulary."""

    def __init__(self, head: torch.nn.Linear, tokens: Sequence[int]) -> None:
        """Take a whole head, whose weights are shared, and the ids to predict.

        Raises:
            ValueError: there is no id, or one is repeated or has no row in the head.
        """
        super().__init__(head.in_features, head.out_features, bias=head.bias is not None, device="meta")
        self.weight, self.bias = head.weight, head.bias
        ordered = sorted(tokens)
        if not ordered or len(set(ordered)) < len(ordered) or not 0 <= ordered[0] <= ordered[-1] < head.out_features:
            raise ValueError(f"a draft vocabulary needs different ids from 0 to {head.out_features - 1}")
        # Saved in a file of its own, so that the weights keep their names.
        self.register_buffer("tokens", torch.tensor(ordered, device=head.weight.device), persistent=False)
        self.coverage: dict[str, float] = {}
        """Share of tokens inside the draft vocabulary: of the large model's texts in `calibration` and in `validation`, and of
        the `targets` that the drafter learnt from."""
        self._compact = False

    @property
    def rows(self) -> int:
        """N: tokens that are predicted."""
        return len(self.tokens)

    def selected(self) -> tuple[Tensor, Tensor | None]:
        """Return the rows of the draft vocabulary, (N, width), and their biases, (N,), if there are any."""
        return self.weight[self.tokens], None if self.bias is None else self.bias[self.tokens]

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (…, width) to logits (…, vocabulary), -infinity outside the draft vocabulary."""
        logits = functional.linear(hidden, *self.selected())
        return logits if self._compact else spread(logits, self.tokens, self.out_features)

    def positions(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row of each id in the draft vocabulary, 0 where it has none, and whether it has one; shaped like `ids`."""
        rows = torch.searchsorted(self.tokens, ids).clamp_(max=self.rows - 1)
        inside = self.tokens[rows] == ids
        return rows.masked_fill(~inside, 0), inside

    @contextlib.contextmanager
    def compact(self) -> Iterator[None]:
        """Make `forward` return the logits of the draft vocabulary alone, (…, N): training needs no others."""
        self._compact = True
        try:
            yield
        finally:
            self._compact = False


def spread(logits: Tensor, tokens: Tensor, vocabulary: int) -> Tensor:
    """Return logits (…, N) of the ids `tokens` (N,) as logits of all ids, (…, vocabulary): -infinity for the others."""
    whole = logits.new_full((*logits.shape[:-1], vocabulary), -torch.inf)
    return whole.index_copy(-1, tokens, logits)


def pruned_head(model: PreTrainedModel) -> PrunedHead | None:
    """Return the pruned head of a model; None if it predicts over its whole vocabulary."""
    head = model.get_output_embeddings()
    return head if isinstance(head, PrunedHead) else None


def prune_head(model: PreTrainedModel, tokens: Sequence[int]) -> PrunedHead:
    """Make a model predict these ids alone, in place.

    Raises:
        InputError: the model's head is not a plain linear layer, or the model caps its logits.
    """
    head = model.get_output_embeddings()
    if getattr(model.config, "final_logit_softcapping", None):
        said = f"a draft vocabulary gives all other tokens a logit of -infinity, which this {model.config.model_type} would cap"
        raise InputError(f"{said}; leave out align.draft_vocabulary")
    if type(head) is not torch.nn.Linear:
        said = "a draft vocabulary needs a head that is a plain linear layer"
        raise InputError(f"{said}, but that of this {model.config.model_type} is another; leave out align.draft_vocabulary")
    pruned = PrunedHead(head, tokens)
    model.set_output_embeddings(pruned)
    return pruned


def save_draft_tokens(model: PreTrainedModel, folder: Path) -> None:
    """Write the draft vocabulary of a model that has one: `tokens`, int64 (N,), and float64 shares such as `validation`."""
    from safetensors.torch import save_file

    head = pruned_head(model)
    if head is not None:
        shares = {name: torch.tensor(share, dtype=torch.float64) for name, share in head.coverage.items()}
        save_file({"tokens": head.tokens.cpu(), **shares}, folder / FILE)


def load_draft_tokens(model: PreTrainedModel, folder: Path) -> None:
    """Prune the head of a model by the file that `save_draft_tokens` wrote to its folder, if there is one.

    Raises:
        InputError: the file is damaged or belongs to another model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (folder / FILE).is_file():
        return
    try:
        found = load_file(folder / FILE)
        head = prune_head(model, found.pop("tokens").tolist())
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{folder / FILE} does not fit the model in that folder: {reason}; train it again") from None
    head.coverage = {name: float(found[name]) for name in _COVERED if name in found}
