from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from tasks.errors import InputError
from tasks.models.pair import check_pair, check_widths


@dataclass(frozen=True)
class Toy:
    """What the check reads of a tokenizer."""

    tokens: tuple[str, ...] = ("<pad>", "</s>", "<unk>", "a", "b")
    pad_token_id: int = 0
    eos_token_id: int = 1
    unk_token_id: int = 2
    shifted: dict[str, int] = field(default_factory=dict)

    def get_vocab(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)} | self.shifted


def test_equal_tokenizers_make_a_pair() -> None:
    check_pair(Toy(), Toy(), "models/small", "models/large")


@pytest.mark.parametrize(
    ("small", "words"),
    [
        (Toy(tokens=Toy().tokens[:4]), "models/small has 4 tokens but models/large has 5"),
        (
            replace(Toy(), tokens=("<pad>", "</s>", "<unk>", "a", "c")),
            "token 'c' is 4 in models/small but missing in models/lar",
        ),
        (replace(Toy(), tokens=("<pad>", "</s>", "<unk>", "b", "a")), "token 'b' is 3 in models/small but 4 in models/large"),
        (replace(Toy(), shifted={"b": 7}), "token 'b' is 7 in models/small but 4 in models/large"),
        (replace(Toy(), pad_token_id=3), "pad_token_id differs between models/small and models/large"),
        (replace(Toy(), eos_token_id=3), "eos_token_id differs"),
        (replace(Toy(), unk_token_id=3), "unk_token_id differs"),
    ],
)
def test_what_differs_is_named(small: Toy, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        check_pair(small, Toy(), "models/small", "models/large")
    assert "\n" not in str(caught.value)


def test_models_of_unequal_widths_are_no_pair() -> None:
    from types import SimpleNamespace

    narrow, wide = (SimpleNamespace(config=SimpleNamespace(vocab_size=size)) for size in (32, 64))
    check_widths(wide, wide)
    with pytest.raises(InputError, match="predicts over 32 tokens but the large one over 64"):
        check_widths(narrow, wide)
