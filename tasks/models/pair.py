"""A small and a large model make a pair only if they speak the same vocabulary."""

from __future__ import annotations

from typing import Any

from tasks.errors import InputError


def check_pair(small: Any, large: Any, small_name: str, large_name: str) -> None:
    """Compares two tokenizers token by token, special tokens included.

    Raises:
        InputError: naming the first token that differs.
    """
    ours, theirs = small.get_vocab(), large.get_vocab()
    mend = "train or load both models with one tokenizer"
    if len(ours) != len(theirs):
        raise InputError(f"{small_name} has {len(ours)} tokens but {large_name} has {len(theirs)}; {mend}")
    for token, index in sorted(ours.items(), key=lambda item: item[1]):
        if theirs.get(token) != index:
            raise InputError(
                f"token {token!r} is {index} in {small_name} but {theirs.get(token, 'missing')} in {large_name}; {mend}"
            )
    for role in ("pad_token_id", "eos_token_id", "unk_token_id"):
        if getattr(small, role) != getattr(large, role):
            raise InputError(f"{role} differs between {small_name} and {large_name}; {mend}")


def check_widths(small: Any, large: Any) -> None:
    """Compares how many tokens two models predict over, which padding can make unequal for one tokenizer.

    Raises:
        InputError: they differ.
    """
    ours, theirs = small.config.vocab_size, large.config.vocab_size
    if ours != theirs:
        raise InputError(
            f"the small model predicts over {ours} tokens but the large one over {theirs}; pad both to one vocabulary size"
        )
