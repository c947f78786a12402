"""The README of an exported pair: how the engine is called, and what was left behind."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.decoding.pair_folder import read_examples
from tasks.export.source import ExportSource
from tasks.models.settings import SOURCE


def readme(source: ExportSource, engine: str, how: str, code: str, lost: Sequence[str]) -> str:
    """Return the page.

    Args:
        source: The pair.
        engine: The engine's name.
        how: What the files are and what the engine does with them.
        code: Python that decodes one text; it runs in the folder of the page.
        lost: What was not carried over, one clause each.
    """
    of = f" of the task {source.manifest.task}" if source.manifest.task else ""
    items = "\n".join(f"- {clause}" for clause in lost)
    return f"# A pair{of} for {engine}\n\n{how}\n\n```python\n{code}```\n\nNot carried over:\n\n{items}\n"


def encoding(source: ExportSource) -> str:
    """Return Python that makes token ids `ids` of a `text` with a `tokenizer`, as the pair's models were trained to read it."""
    text = source.manifest.text
    if not text.chat_template:
        limit = text.max_source_tokens
        return (
            f'ids = tokenizer(text, truncation=True, max_length={limit})["input_ids"]\n'
            "if ids[-1] != tokenizer.eos_token_id:\n"
            f"    ids = [*ids[:{limit - 1}], tokenizer.eos_token_id]\n"
        )
    system = [] if text.system is None else [f'    {{"role": "system", "content": {text.system!r}}},\n']
    content = "text" if text.instruction == SOURCE else f"{text.instruction!r}.replace({SOURCE!r}, text)"
    return "".join(
        [
            "messages = [\n",
            *system,
            f'    {{"role": "user", "content": {content}}},\n]\n',
            "prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)\n",
            'ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]\n',
        ]
    )


def example(source: ExportSource) -> str:
    """Return Python that sets `text` to an example of the pair."""
    examples = read_examples(source.folder)
    return f"text = {(examples[0] if examples else 'A text.')!r}\n"
