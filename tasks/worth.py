"""Forecast what drafting would bring a large model on this machine, before anyone trains a drafter.

`python -m tasks.worth LARGE --texts FILE` times the large model on the texts, one at a time: its encoder or prompt, which no
drafter can save, a step, and a run over several positions, which checks a draft. From that it computes how fast speculative
decoding would be for each agreement and each cost of a drafter (SD, Theorem 3.8, with the measured cost of a check). With a
small model, `python -m tasks.worth LARGE SMALL --texts FILE` also measures the agreement of the two on the large model's own
outputs, makes its forecast, and times speculative decoding beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tasks.console import add_json, answer, command_parser, progress
from tasks.decoding.decoder import Rows, Runtime
from tasks.decoding.inference import OWN_TEXT, load_pair
from tasks.decoding.method import GREEDY, Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import expected_speedup
from tasks.decoding.registry import configure_method, decode
from tasks.decoding.runtimes.choose import open_decoder
from tasks.errors import InputError, check_picture, read_lines, stage
from tasks.evaluation.acceptance import Drafting, measure_acceptance, write_texts
from tasks.evaluation.results.pair import AcceptanceRate, Costs
from tasks.evaluation.scoring.statistics import Interval, ratio_interval
from tasks.evaluation.sweep.plan import measure_costs
from tasks.evaluation.timing import Clock, measure_in_turn, synchronised_clock
from tasks.lineage import hardware
from tasks.machine import MachineSettings, set_up
from tasks.models.checkpoints import load_model
from tasks.models.pair import check_lengths, check_sizes, vocabulary_size
from tasks.models.prompting import encode_sources
from tasks.models.tokenizers import load_tokenizer

LONGEST = 10
"""The longest draft that is considered, tokens."""
AGREEMENTS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
COSTS = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Of a drafter's step, in steps of the large model."""
TARGETS = (1.5, 2.0)
_GROUPS, _MOST_TIMED = 5, 4
"""Groups of texts that are timed one after the other, and most texts of a group."""
_BATCH = 32
"""Texts that are decoded side by side where nothing is timed."""


# --- the forecast ---------------------------------------------------------------------------------------------------------


class DrafterCost(NamedTuple):
    """What a drafter takes, as shares of what the large model takes for the same."""

    step: float
    """c: a step (SD, Definition 3.7)."""
    reading: float
    """Its encoder, or its run over the prompt."""


@dataclass(frozen=True)
class Group:
    """What a few texts cost on this machine, and the forecast that follows."""

    costs: Costs
    tokens: float
    """Mean length of the large model's outputs."""

    @property
    def fixed(self) -> float:
        """The share of a text's time that no drafter can save: the large model's encoder, or its run over the prompt."""
        return self.costs.encode_large_ms / self.text_ms

    @property
    def text_ms(self) -> float:
        """A text of the large model alone."""
        return self.costs.encode_large_ms + self.tokens * self.costs.verify(1)

    @property
    def drafter(self) -> DrafterCost:
        """The cost of the small model."""
        large = self.costs.encode_large_ms
        return DrafterCost(self.costs.cost_ratio, self.costs.encode_small_ms / large if large else 0.0)

    def check(self, positions: int) -> float:
        """A run of the large model over so many positions, in its steps."""
        return self.costs.verify(positions) / self.costs.verify(1)

    def speedup(self, agreement: float, length: int, drafter: DrafterCost) -> float:
        """Return the forecast of speculative decoding, without what a program does between the runs of the models.

        That is SD, Theorem 3.8, with the measured cost of a check, for the tokens of a text; the rest of a text stays.

        Args:
            agreement: α, alike at every position.
            length: γ, the drafted tokens before a check.
            drafter: What it costs.
        """
        of_tokens = expected_speedup(agreement, length, drafter.step, self.check(length + 1))
        return 1 / (self.fixed * (1 + drafter.reading) + (1 - self.fixed) / of_tokens)

    def best(self, agreement: float, drafter: DrafterCost) -> tuple[float, int]:
        """Return the greatest speed-up and its draft length; 1 and 0 where no draft is faster than none."""
        found = [(self.speedup(agreement, length, drafter), -length) for length in range(1, LONGEST + 1)]
        speedup, length = max([(1.0, 0), *found])
        return speedup, -length

    def needed(self, speedup: float, drafter: DrafterCost) -> float | None:
        """Return the least agreement, in hundredths, that brings more than this speed-up; None where even 1 does not."""
        agreements = (number / 100 for number in range(101))
        return next((one for one in agreements if self.best(one, drafter)[0] > speedup), None)


FREE = DrafterCost(0.0, 0.0)


def middle(groups: Sequence[Group]) -> Group:
    """Return the group of median costs."""

    def median(value: Callable[[Group], float]) -> float:
        return statistics.median(map(value, groups))

    step = median(lambda one: one.costs.verify(1))
    costs = dataclasses.replace(
        groups[0].costs,
        encode_small_ms=median(lambda one: one.costs.encode_small_ms),
        encode_large_ms=median(lambda one: one.costs.encode_large_ms),
        small_step_ms=median(lambda one: one.costs.small_step_ms),
        # Medians of ratios: where the machine slows down for a group, all of the group's parts do.
        verify_ms={width: step * statistics.median(one.check(width) for one in groups) for width in groups[0].costs.verify_ms},
        cost_ratio=median(lambda one: one.costs.cost_ratio),
    )
    return Group(costs, statistics.fmean(one.tokens for one in groups))


@dataclass(frozen=True)
class Forecast:
    """Speculative decoding with a given small model."""

    temperature: float
    agreement: float
    agreement_interval: Interval
    speedup: float
    interval: Interval
    """From the least to the greatest forecast of the groups, at both ends of the agreement's interval."""
    draft_length: int
    """0: no draft is faster than none."""


@dataclass(frozen=True)
class Timed:
    """Greedy speculative decoding with the small model, timed beside the large model alone."""

    draft_length: int
    speedup: float
    interval: Interval
    """Over texts."""


def forecast(groups: Sequence[Group], agreement: AcceptanceRate) -> Forecast:
    """Return what a small model with this agreement brings at its best draft length."""
    whole = middle(groups)
    speedup, length = whole.best(agreement.rate, whole.drafter)
    ends = itertools.product(groups, agreement.interval)
    found = [group.speedup(rate, length, group.drafter) if length else 1.0 for group, rate in ends]
    return Forecast(
        temperature=agreement.temperature,
        agreement=agreement.rate,
        agreement_interval=agreement.interval,
        speedup=speedup,
        interval=(min(found), max(found)),
        draft_length=length,
    )


# --- the measurement ------------------------------------------------------------------------------------------------------


def measure(pair: Pair, sources: Rows, request: Request, clock: Clock) -> list[Group]:
    """Time groups of texts one after the other.

    Args:
        pair: The models; the large model twice where there is no small one.
        sources: Token ids of each text.
        request: Length limit.
        clock: Seconds, synchronised with the device.
    """
    size = max(1, min(_MOST_TIMED, len(sources) // _GROUPS))
    groups = []
    parts = [sources[begin : begin + size] for begin in range(0, min(len(sources), size * _GROUPS), size)]
    for part in progress(parts, desc="time", unit="group"):
        costs = measure_costs(pair, part, request, clock)
        written = decode("vanilla_large", VanillaSettings(), pair, part, request, range(len(part)))
        groups.append(Group(costs, statistics.fmean(len(one.tokens) for one in written)))
    return groups


def measure_agreement(pair: Pair, sources: Rows, request: Request) -> list[AcceptanceRate]:
    """Measure α on the large model's own outputs, greedy and at temperature 1."""
    found = list[AcceptanceRate]()
    for sampling in (GREEDY, SamplingSettings(temperature=1.0)):
        own = dataclasses.replace(request, sampling=sampling)
        texts = write_texts(pair, sources, own, _BATCH)
        found += measure_acceptance([Drafting()], pair, sources, own, texts).values()
    return found


def time_beside_vanilla(pair: Pair, sources: Rows, request: Request, draft_length: int, clock: Clock) -> Timed:
    """Time greedy speculative decoding in turn with the large model alone."""
    points = {"vanilla": configure_method("vanilla_large", {})}
    points["speculative"] = configure_method("speculative", {"draft_length": draft_length})

    def call(name: str) -> Callable[[int], object]:
        point = points[name]
        return lambda number: decode(point.method, point.settings, pair, [sources[number]], request, [number])

    order = random.Random(request.seed)  # noqa: S311 (an order, not a secret)
    times, _ = measure_in_turn({name: call(name) for name in points}, range(len(sources)), warmup=2, rng=order, clock=clock)
    speedup = sum(times["vanilla"]) / sum(times["speculative"])
    return Timed(draft_length, speedup, ratio_interval(times["vanilla"], times["speculative"], 1000, request.seed))


def open_models(arguments: argparse.Namespace) -> tuple[Pair, Callable[[list[str]], Rows], str]:
    """Open the models; return them, what encodes texts, and the device. Without a small model the large one stands for both.

    Raises:
        InputError: a setting is out of its bounds, a model is missing, or the two do not fit each other or the lengths.
    """
    try:
        machine = MachineSettings(dtype=arguments.dtype, drafter_dtype=arguments.drafter_dtype, threads=arguments.threads)
        lengths = {"max_target_tokens": arguments.max_tokens, "chat_template": arguments.chat_template}
        text = dataclasses.replace(OWN_TEXT, **lengths)
    except ValueError as error:
        raise InputError(str(error)) from None
    if arguments.small is not None:
        found = load_pair(large=arguments.large, drafter=arguments.small, text=text, **machine.of_models())
        check_sizes(found.models["small"], found.models["large"], str(arguments.small), str(arguments.large))
        return found.decoders, found.encode, found.device
    device, dtype = set_up(machine)
    tokenizer, model = load_tokenizer(arguments.large), load_model(arguments.large, device, dtype)
    check_lengths(model, "large", text)
    large = open_decoder(model, "large", vocabulary_size(tokenizer, model), Runtime(machine.runtime, machine.dtype == "int8"))
    return Pair(large, large), lambda texts: encode_sources(tokenizer, texts, text), device.type


# --- what is said ---------------------------------------------------------------------------------------------------------


def described(groups: Sequence[Group]) -> list[str]:
    """Return what was timed of the large model, and the bounds that follow, as lines."""
    whole = middle(groups)
    fixed, check = ([one.fixed for one in groups], [one.check(5) for one in groups])
    ceiling, length = whole.best(1.0, FREE)
    return [
        f"the large model alone takes {whole.text_ms:.3g} ms a text of {whole.tokens:.1f} tokens; {whole.fixed:.0%} "
        f"[{min(fixed):.0%}, {max(fixed):.0%}] of that is its encoder or prompt, which no drafter saves",
        f"a step takes {whole.costs.verify(1):.3g} ms; a check of 5 positions takes {whole.check(5):.2f} "
        f"[{min(check):.2f}, {max(check):.2f}] steps",
        f"ceiling: {ceiling:.2f}x, by a drafter that costs nothing and is always right, {length} tokens at a time",
    ]


def table(whole: Group) -> list[str]:
    """Return the speed-ups by agreement and by cost of a drafter, with the best draft length of each, as lines."""
    drafters = [DrafterCost(cost, cost) for cost in COSTS]

    def cell(found: tuple[float, int]) -> str:
        return f"{found[0]:.2f}x ({found[1]})" if found[1] else "-"

    def line(name: str, cells: Sequence[str]) -> str:
        return f"  {name:<12}" + "".join(f"{one:>12}" for one in cells)

    rows = [line(f"{one:.2f}", [cell(whole.best(one, drafter)) for drafter in drafters]) for one in AGREEMENTS]
    wanted = {"faster from": 1.0, **{f"{target:g}x from": target for target in TARGETS}}
    rows += [
        line(name, ["never" if (found := whole.needed(target, one)) is None else f"{found:.2f}" for one in drafters])
        for name, target in wanted.items()
    ]
    head = "speed-up (draft length) by agreement, and by the cost of a drafter's step in steps of the large model:"
    return [head, line("agreement", [f"{cost:g}" for cost in COSTS]), *rows]


def of_small(whole: Group, found: Sequence[Forecast], timed: Timed) -> list[str]:
    """Return what was measured of the small model, what is forecast, and what was timed, as lines."""
    step, reading = whole.drafter
    lines = [f"the small model: a step takes {step:.3f} of the large model's, reading the source {reading:.3f}"]
    for one in found:
        low, high = one.agreement_interval
        sampling = "greedy" if one.temperature == 0 else "at temperature 1"
        ahead = f"{ratio(one.speedup, one.interval)} with draft length {one.draft_length}"
        lines.append(
            f"{sampling}: agreement {one.agreement:.3f} [{low:.3f}, {high:.3f}], forecast "
            + (ahead if one.draft_length else "that no draft is faster than none")
        )
    lines.append(f"timed, greedy with draft length {timed.draft_length}: {ratio(timed.speedup, timed.interval)}")
    needed = {target: whole.needed(target, whole.drafter) for target in TARGETS}
    return [*lines, "at this cost " + ", ".join(f"{target:g}x {_from(one)}" for target, one in needed.items())]


def ratio(value: float, interval: Interval) -> str:
    """Return a speed-up with its interval."""
    return f"{value:.2f}x [{interval[0]:.2f}, {interval[1]:.2f}]"


def _from(agreement: float | None) -> str:
    return "cannot be reached" if agreement is None else f"takes an agreement of {agreement:.2f}"


def verdict(whole: Group, timed: Timed | None) -> str:
    """Return the first line: whether it is worth it, or from which drafter on."""
    if timed is None:
        drafter = DrafterCost(0.1, 0.1)
        pays, target = whole.needed(1.0, drafter), TARGETS[0]
        said = "does not pay" if pays is None else f"pays from an agreement of {pays:.2f}"
        return f"A drafter of a tenth of the cost {said}; {target:g}x {_from(whole.needed(target, drafter))}."
    low, high = timed.interval
    said = "Worth it" if low > 1 else "Not worth it" if high < 1 else "Open"
    return f"{said}: greedy speculative decoding is {ratio(timed.speedup, timed.interval)} as fast as the large model alone."


def draw(whole: Group, file: Path) -> None:
    """Draw the speed-up by agreement, a line for each cost of a drafter, as SVG or PNG by the file's suffix."""
    import altair as alt

    from tasks.evaluation.report import charts

    names = [f"drafter's step {cost:g}" for cost in COSTS]
    records = [
        {"x": number / 20, "y": found, "series": name, "curve": name, "text": f"{found:.2f}x, draft length {length}"}
        for name, cost in zip(names, COSTS, strict=True)
        for number in range(21)
        for found, length in [whole.best(number / 20, DrafterCost(cost, cost))]
    ]
    lines = charts.curves(records, names, "agreement with the large model", "speed-up (×), by the best draft length")
    caption = f"Forecast for a text of {whole.tokens:.0f} tokens, of whose time {whole.fixed:.0%} is the encoder or the prompt."
    charts.save(charts.Figure("Speed-up that a drafter would bring", caption, [alt.layer(*lines)]), file)


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    found = command_parser(__doc__)
    found.add_argument("large", type=Path, metavar="LARGE", help="the large model: a folder, a GGUF file or a name on the hub")
    found.add_argument("small", type=Path, nargs="?", metavar="SMALL", help="a small model that could draft for it")
    found.add_argument("--texts", type=Path, required=True, metavar="FILE", help="what the models read, one text a line, UTF-8")
    count, longest = "texts to read, from the first (default: %(default)s)", "most tokens of an output (default: %(default)s)"
    found.add_argument("--count", type=int, default=40, metavar="N", help=count)
    found.add_argument("--max-tokens", type=int, default=128, metavar="N", help=longest)
    found.add_argument("--chat-template", action="store_true", help="put each text as a user's message")
    found.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "int8"), help="default: %(default)s")
    found.add_argument("--drafter-dtype", default="same", choices=("same", "int8"), help="of SMALL (default: %(default)s)")
    found.add_argument("--threads", type=int, default=0, metavar="N", help="CPU threads (default: torch's number)")
    found.add_argument("--figure", type=Path, metavar="FILE", help="draw the speed-ups in this file, .svg or .png")
    add_json(found)
    return found


def main() -> None:
    """Measure, forecast and print."""
    arguments = parser().parse_args()
    texts = read_lines(arguments.texts)[: max(arguments.count, 0)]
    if len(texts) < _GROUPS:
        raise InputError(f"{arguments.texts}: {len(texts)} texts are too few; give {_GROUPS} or more, and --count as many")
    check_picture("--figure", arguments.figure)
    if arguments.small is None and arguments.drafter_dtype != "same":
        raise InputError("--drafter-dtype is the number format of SMALL, which is not given; name it, or leave the option out")
    pair, encode, device = open_models(arguments)
    sources, request, clock = encode(texts), Request(arguments.max_tokens), synchronised_clock(device)
    # 1. What the models cost on groups of the texts.
    groups = measure(pair, sources, request, clock)
    whole = middle(groups)
    # 2. What the small model brings: forecast, and timed at the best draft length, or at one token where none pays.
    found, timed = list[Forecast](), None
    if arguments.small is not None:
        found = [forecast(groups, one) for one in measure_agreement(pair, sources, request)]
        timed = time_beside_vanilla(pair, sources, request, max(1, found[0].draft_length), clock)
    if arguments.figure is not None:
        draw(whole, arguments.figure)
    where = f"{hardware()['host_cpu']}, {pair.described}, {len(texts)} texts of {arguments.texts}, one at a time"
    lines = [verdict(whole, timed), where, *described(groups), "", *table(whole)]
    if timed is not None:
        lines += ["", *of_small(whole, found, timed)]
    answer(arguments, "\n".join(lines), **as_json(groups, found, timed), processor=hardware()["host_cpu"])


def as_json(groups: Sequence[Group], found: Sequence[Forecast], timed: Timed | None) -> dict[str, Any]:
    """Return all that was measured and forecast, as plain values."""
    whole = middle(groups)
    cells = [(agreement, cost, whole.best(agreement, DrafterCost(cost, cost))) for agreement in AGREEMENTS for cost in COSTS]
    return {
        "groups": [dataclasses.asdict(one) for one in groups],
        "fixed_share": whole.fixed,
        "ceiling": whole.best(1.0, FREE)[0],
        "table": [
            {"agreement": agreement, "cost": cost, "speedup": speedup, "draft_length": length}
            for agreement, cost, (speedup, length) in cells
        ],
        "forecast": [dataclasses.asdict(one) for one in found],
        "timed": None if timed is None else dataclasses.asdict(timed),
    }


if __name__ == "__main__":
    with stage():
        main()
