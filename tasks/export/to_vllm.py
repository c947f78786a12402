"""Exports a decoder-only pair for vLLM: two folders and the `speculative_config` that names the drafter.

vLLM does not run here. The keys and their meaning are those of its documentation
(https://docs.vllm.ai/en/latest/features/speculative_decoding/draft_model/) and of its class `SpeculativeConfig`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tasks.decoding.pair_folder import DRAFTER, LARGE
from tasks.errors import InputError
from tasks.export.readme import encoding, example, readme
from tasks.export.source import ExportSource, left_behind
from tasks.export.to_transformers import ONLY_HERE

CONFIG = "speculative_config.json"


def write(source: ExportSource, out: Path) -> list[str]:
    """Write the folder `out`, which exists and is empty, and return what was left behind.

    Raises:
        InputError: the models are encoder-decoders.
    """
    if source.encoder_decoder:
        raise InputError(f"vLLM runs no encoder-decoder such as {source.kind}; export to transformers or ctranslate2 instead")
    shutil.copytree(source.large, out / LARGE, ignore=ONLY_HERE)
    shutil.copytree(source.drafter, out / DRAFTER, ignore=ONLY_HERE)
    found = {"method": "draft_model", "model": DRAFTER, "num_speculative_tokens": source.draft_length}
    (out / CONFIG).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    lost = left_behind(source)
    (out / "README.md").write_text(readme(source, "vLLM", _how(source), _code(source), lost), encoding="utf-8")
    return lost


def _how(source: ExportSource) -> str:
    return (
        f'Start the server in this folder: `vllm serve {LARGE} --speculative-config "$(cat {CONFIG})"`.\n'
        f"It drafts {source.draft_length} tokens at a time; the output is the large model's own. The folder follows vLLM's\n"
        "documentation and was not run in vLLM. Give prompts as token ids, as below: those are what the models were trained on."
    )


def _code(source: ExportSource) -> str:
    limit = source.manifest.text.max_target_tokens
    return (
        "import json\nfrom pathlib import Path\n\n"
        "from transformers import AutoTokenizer\nfrom vllm import LLM, SamplingParams\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{LARGE}")\n'
        f'llm = LLM(model="{LARGE}", speculative_config=json.loads(Path("{CONFIG}").read_text()))\n\n'
        f"{example(source)}{encoding(source)}"
        f'[output] = llm.generate([{{"prompt_token_ids": ids}}], SamplingParams(temperature=0, max_tokens={limit}))\n'
        "print(output.outputs[0].text)\n"
    )
