"""Speculative decoding of OpenVINO GenAI, read by what each call of the large model writes.

Its own counters are no basis for a comparison. `get_num_accepted_tokens` and `get_num_draft_tokens` leave out the last call of
a text, and its first call reads the prompt without a draft. `m_batch_sizes` of the main model's raw metrics, however, holds the
number of tokens that each call wrote: those that it accepted and one of its own. Their sum is the text, so tokens per call of
the large model are exact, and `tasks.verify.decoding` decodes here by the same schedule.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.decoding.generation import Generation
from tasks.decoding.pair_folder import DRAFTER, LARGE
from tasks.models.openvino_model import check_convertible, require_openvino, write_openvino_model
from tasks.models.tokenizers import load_from
from tasks.verify.comparison import TOKENS_PER_CALL
from tasks.verify.counting import count_calls

FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
"""OpenVINO otherwise computes in bfloat16 where the processor does, and keeps the past in 8 bits."""
_ANY_PROMPT = 1 << 20
"""Tokens of a call: a prompt that is read in parts would count as several calls."""


class OpenvinoEngine:
    """A pair in OpenVINO GenAI: float32 on the CPU, greedy, a constant number of drafted tokens."""

    name = "openvino"
    tolerance = 0.05
    """Greatest difference of the tokens per call of the large model at which a certificate holds."""
    measure = TOKENS_PER_CALL
    drafts_on_prompt = False
    """The first call of the large model reads the prompt alone."""

    def __init__(self, folder: Path, draft_length: int) -> None:
        """Convert the two models of a pair folder and open them.

        Raises:
            InputError: OpenVINO GenAI is not installed, there is no loadable model, or it cannot be converted.
        """
        require_openvino()
        import openvino_genai
        from transformers import AutoConfig, GenerationConfig

        for name in (LARGE, DRAFTER):
            check_convertible(folder / name, load_from(AutoConfig.from_pretrained, folder / name, "model").to_dict())
        with tempfile.TemporaryDirectory() as scratch:
            for name in (LARGE, DRAFTER):
                write_openvino_model(folder / name, Path(scratch) / name)
            self._pipeline = _open(Path(scratch))
        settings = openvino_genai.GenerationConfig()
        settings.do_sample = False
        settings.num_assistant_tokens = draft_length
        ends = GenerationConfig.from_pretrained(folder / LARGE).eos_token_id
        settings.stop_token_ids = set(ends) if isinstance(ends, list) else {ends}
        self._settings = settings

    @property
    def version(self) -> str:
        """The library's version."""
        import openvino_genai

        return str(openvino_genai.get_version())

    def decode(self, source: list[int], limit: int) -> Generation:
        """Decode one source; counts are of tokens and calls alone, and no proposers are given.

        Args:
            source: Token ids.
            limit: Most new tokens, the end token included.
        """
        import openvino

        self._settings.max_new_tokens = limit
        found = self._pipeline.generate(openvino.Tensor(np.array([source], dtype=np.int64)), self._settings)
        tokens, written = list(found.tokens[0]), found.extended_perf_metrics.main_model_metrics.raw_metrics.m_batch_sizes
        return Generation(tokens, "", count_calls(written, tokens))


def _open(folder: Path) -> Any:
    import openvino_genai

    schedule = openvino_genai.SchedulerConfig()
    schedule.max_num_batched_tokens = _ANY_PROMPT
    schedule.dynamic_split_fuse = False
    schedule.enable_prefix_caching = False
    options = {**FLOAT32, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    drafter = openvino_genai.draft_model(folder / DRAFTER, "CPU", scheduler_config=schedule, **options)
    return openvino_genai.LLMPipeline(folder / LARGE, "CPU", scheduler_config=schedule, draft_model=drafter, **options)
