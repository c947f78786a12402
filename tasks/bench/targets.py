"""The target ratios of the benchmark, whether they are met, and the results as text and JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from tasks.bench.contenders import RATIOS
from tasks.bench.formats import EXACT
from tasks.bench.limits import step_lines
from tasks.bench.measuring import CaseResult
from tasks.bench.timing import Found
from tasks.lineage import lineage

_SHOWN = 2
_STEP_CASE = "4 layers d 256"
"""The case whose step stands for all in the last line."""


@dataclass(frozen=True)
class Target:
    """The target of one ratio."""

    least: float
    trained: bool
    """Whether the ratio is taken from the trained pair where that was measured."""
    shape: str = ""
    """The random shape that the ratio is taken from otherwise; empty where random weights say nothing about it."""
    of: str = ""
    """Name of the ratio in that case, where it differs."""


TARGETS = {
    "vanilla_over_generate": Target(2.5, False, "4 layers d 256"),
    "vanilla_over_ctranslate2": Target(1.6, False, "4 layers d 256"),
    "drafter_step_over_generate": Target(5.0, False, "2 layers d 64", "vanilla_over_generate"),
    "speculative_over_assisted": Target(3.0, True, "4 layers d 256"),
    "bild_over_vanilla": Target(1.85, True),
    "bild_over_ctranslate2": Target(1.0, True),
    "batched_over_generate": Target(2.5, False, "4 layers d 256"),
    "batched_over_ctranslate2": Target(1.5, False, "4 layers d 256"),
}
"""The drafter's step is measured by decoding with a model of its shape alone."""


def check_targets(results: Sequence[CaseResult], trained: str | None) -> dict[str, Found]:
    """Ratio, case, target and outcome of each target that was measured; a target of BiLD also requires no loss of quality."""
    cases = {one.name: one for one in results}
    found = {}
    for name, target in TARGETS.items():
        asked = trained if target.trained and trained in cases else target.shape
        ratio = cases[asked].ratios.get(target.of or name) if asked in cases else None
        if ratio is not None and asked is not None:
            whole = not name.startswith("bild") or cases[asked].bild["quality"]["no_loss"]
            found[name] = {"ratio": ratio, "case": asked, "target": target.least, "met": ratio >= target.least and whole}
    return found


def as_json(
    results: Sequence[CaseResult], checks: Mapping[str, Found], limits: Found, threads: int, rounds: int
) -> dict[str, object]:
    """All measurements and the hardware that they were taken on; a ratio that was not measured is null."""
    steps = [one.formats[EXACT].get("step") for one in results if one.name == _STEP_CASE and EXACT in one.formats]
    step = (steps and steps[0]) or {}
    return {
        **hardware(),
        "threads": threads,
        "rounds": rounds,
        **{name: checks[name]["ratio"] if name in checks else None for name in TARGETS},
        **{name: step.get(name) for name in ("bandwidth_share", "check_over_step")},
        "limits": limits,
        "targets": checks,
        "cases": {one.name: asdict(one) for one in results},
    }


def hardware() -> dict[str, object]:
    """Processor, cores available to this process, package versions and commit."""
    tags = lineage()
    versions = {"python": platform.python_version()}
    for package in ("torch", "transformers", "ctranslate2"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "hardware": {"cpu": tags.get("host_cpu"), "cores": int(tags.get("host_cores", os.cpu_count() or 1))},
        "versions": versions,
        "commit": tags.get("git_commit"),
    }


def case_lines(one: CaseResult) -> Iterator[str]:
    """A table of each contender's time, setting and memory, followed by the ratios."""
    yield f"  {'':24}{'ms/token':>10} {'limit':>6}  {'MiB':>7} {'above model':>12}  fastest setting (the next in a short trial)"
    for name, ms in one.ms_per_token.items():
        used = one.memory_mib.get(name)
        whole, above = (f"{used['whole']:.0f}", f"{used['above_model']:.1f}") if used else ("", "")
        tried = sorted(one.tried[name].items(), key=lambda item: item[1])
        others = "; ".join([f"{label} {taken:.3g}" for label, taken in tried if label != one.settings[name]][:_SHOWN])
        share = f"{one.limit_shares[name]:.0%}" if name in one.limit_shares else ""
        yield f"  {name:24}{ms:>10.3f} {share:>6}  {whole:>7} {above:>12}  {one.settings[name]} ({others})"
    for name, ratio in one.ratios.items():
        ours, theirs = RATIOS[name]
        yield f"  {name:28}{ratio:>7.2f}   ({ours} over {theirs}; at the requested threads {one.ratios_at_threads[name]:.2f})"
    if one.accepted is not None:
        yield f"  speculative decoding accepts {one.accepted:.0%} of the drafted tokens"
    for name, found in one.formats.items():
        scored = "" if found["quality"] is None else f"; quality {found['quality']}"
        peer = "" if found["over_ctranslate2"] is None else f", {found['over_ctranslate2']:.2f} times as CTranslate2 in {name}"
        yield (
            f"  vanilla in {name:10}{found['over_float32']:>6.2f} times as fast as in float32{peer}; {found['differ']} of "
            f"{found['texts']} texts differ, at top-2 margins up to {found['worst_margin']:.2g}{scored}"
        )
    yield from step_lines(one.formats)
    if one.bild:
        kept = one.bild["quality"]
        low, high = kept["difference_interval"]
        yield (
            f"  BiLD ({one.bild['from']}: {one.bild['settings']}): {kept['metric']} {kept['bild']} beside vanilla's "
            f"{kept['vanilla']} on {kept['examples']} examples, difference {low:.2f} to {high:.2f}: "
            + ("no loss" if kept["no_loss"] else "a loss")
        )


def target_lines(checks: Mapping[str, Found]) -> Iterator[str]:
    """A table of the targets."""
    yield f"{'':28}{'ratio':>7} {'target':>8}  met  where"
    for name in TARGETS:
        one = checks.get(name)
        if one is None:
            yield f"{name:28}{'-':>7} {TARGETS[name].least:>8}  -    not measured"
        else:
            yield f"{name:28}{one['ratio']:>7.2f} {one['target']:>8}  {'yes' if one['met'] else 'NO':3}  {one['case']}"
