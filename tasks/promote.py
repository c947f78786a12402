"""Set the new pair of a task beside its champion, and make it the champion where it is better beyond noise.

`python -m tasks.promote --task translation` takes the version of `draftline-TASK` in MLflow with the alias `candidate`, and
the one with the alias `champion`. Both decode the current test split on this machine and are timed in rounds. The alias moves
by the rule in docs/selection.md. Without a champion, the candidate has to beat its own large model alone by the same rule.

The last line says what was decided and why. The exit status is 0 where the candidate is the champion now, 3 where it is not,
and 2 for bad input.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from tasks import supervisor, tracking
from tasks.config import Params, load, task_parser
from tasks.console import add_json, answer, log, quieten_transformers
from tasks.corpora.example import Example, read_jsonl
from tasks.decoding.generation import Generation
from tasks.decoding.inference import VANILLA, DecodingPair, load_pair
from tasks.decoding.method import Request
from tasks.decoding.registry import ConfiguredMethod
from tasks.errors import STATUS_NOT_PROMOTED, InputError, stage
from tasks.evaluation.report.formatting import metric_name, number_text, points_text
from tasks.evaluation.results.rows import TimedRound
from tasks.evaluation.scoring.metrics import PERPLEXITY, metric_of
from tasks.evaluation.scoring.quality import Quality, score
from tasks.evaluation.scoring.statistics import Interval, combined, speedup_interval
from tasks.evaluation.selection import normal_bounds, paired_differences, upper_bounds
from tasks.evaluation.settings import REPORTED_ON, SweepSettings
from tasks.evaluation.sweep.grid import SweepPoint
from tasks.evaluation.sweep.replay import Outputs, Split, decoded_outputs
from tasks.evaluation.timing import Clock, count_mismatches, measure_in_turn, synchronised_clock
from tasks.files import checksum, folder_checksum
from tasks.lineage import datasets, hardware, lineage
from tasks.locks import host_lock, timing_lock
from tasks.machine import MachineSettings, on_threads, set_up
from tasks.paths import CACHE, TaskPaths
from tasks.tracking.registry import CANDIDATE, CONTENT_TAG
from tasks.tracking.upload import Unavailable, connect, one_line

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

CHAMPION = "champion"
"""The alias of the version that is served."""
REFUSED_TAG, WHY_TAG = "draftline.refused", "draftline.why"
"""Of a version: what it was refused against, and why it was promoted or refused."""
ROUNDS = 8
"""Rounds of timing: more than a sweep's, because a single pair of points is compared."""
_FEWEST_ROUNDS = 2
_ALONE = "its large model alone"
SLOWER = 0.05
"""The share of its speed that a better candidate may lose."""
_TAIL = 0.025
"""What lies beyond either end of an interval."""


# The rule.


@dataclass(frozen=True)
class Gain:
    """What a candidate gives beside a reference on the same examples."""

    quality_difference: float
    """Quality minus the reference's, in points of the metric."""
    quality_interval: Interval
    """95 %, over examples."""
    speed_ratio: float
    """Σ time of the reference / Σ time of the candidate."""
    speed_interval: Interval
    """95 %, over examples and rounds."""


def gain(
    candidate: NDArray[np.generic], reference: NDArray[np.generic], rounds: Sequence[TimedRound], samples: int, seed: int
) -> Gain:
    """Return what a candidate gives beside a reference.

    The interval of quality is that by which a sweep chooses (`selection.normal_bounds`), here of a single difference: where
    losses are rare and large it is wider than a bootstrap's. The interval of speed is that of a sweep's speed-ups.

    Args:
        candidate: `[examples, values]`, its `quality.example_statistics`.
        reference: The same of the reference, on the same examples.
        rounds: Milliseconds of both, the reference in the place of vanilla.
        samples: Bootstrap resamples.
        seed: Of the resamples.
    """
    found = paired_differences(candidate[None], reference)
    ours, theirs = combined(rounds)
    return Gain(
        float(found.values[0]),
        (float(normal_bounds(found, _TAIL)[0]), float(upper_bounds(found, _TAIL)[0])),
        sum(theirs) / sum(ours),
        speedup_interval(rounds, samples, seed),
    )


def decide(found: Gain, metric: str, margin: float, reference: str) -> tuple[bool, str]:
    """Apply the rule: whether the candidate is promoted, and why in a line.

    Args:
        found: What the candidate gives.
        metric: Of the quality, for the line.
        margin: Points that a faster candidate may lose.
        reference: What the candidate is compared with, for the line: `the champion`.
    """
    faster, kept = found.speed_interval[0] > 1, found.quality_interval[0] > -margin
    better, not_slower = found.quality_interval[0] > 0, found.speed_interval[0] > 1 - SLOWER
    speed = f"{number_text(found.speed_ratio, found.speed_interval, unit='×')} as fast as {reference}"
    quality = f"{metric_name(metric)} {number_text(found.quality_difference, found.quality_interval, sign='+')}"
    if faster and kept:
        gained = " and better" if better else f", and loses less than {points_text(margin)}"
        return True, f"faster{gained}: {speed}, {quality}"
    if better and not_slower:
        return True, f"better, and loses less than {SLOWER:.0%} of the speed: {speed}, {quality}"
    if faster:
        reason = f"faster, but it may lose {points_text(margin)} or more"
    elif better:
        reason = f"better, but it may lose {SLOWER:.0%} of the speed or more"
    else:
        reason = "neither faster nor better beyond noise"
    return False, f"{reason}: {speed}, {quality}"


# Both sides measured.


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    name: str
    folder: Path
    """The folder of its pair."""
    point: ConfiguredMethod | None = None
    """What it decodes with; None: the pair's operating point."""


@dataclass(frozen=True)
class Setting:
    """The examples that both decode, and how they are measured."""

    examples: list[Example]
    split: str
    metric: str
    sweep: SweepSettings
    """Sampling, batch size, timed examples, warm-up, threads, resamples and seed."""
    machine: MachineSettings


def measure_sides(sides: tuple[Side, Side], setting: Setting, rounds: int) -> tuple[tuple[Quality, Quality], list[TimedRound]]:
    """Decode the examples with both sides, then time both: their qualities, and milliseconds, the second as vanilla.

    Each round is timed in a process of its own, which opens both pairs, in alternating order. An advantage that lasts as long
    as a process, such as where code and weights happen to lie in memory, then counts as scatter of the rounds; within one
    process it would be a bias. The examples are decoded and scored once, in this process.

    Args:
        sides: What is compared; two sides with one folder share its models.
        setting: The examples, and how they are measured.
        rounds: How often each timed example is decoded by both.

    Raises:
        InputError: a folder is damaged, or its pair does not run with these settings.
        TimedTokensError: a timed call generated other tokens than were scored.
        OSError: a process that times died.
    """
    outputs, qualities = [], []
    for side in sides:
        log.info("%s: %d examples of %s are decoded", side.name, len(setting.examples), setting.split)
        decoded, quality = _decode(side, setting)
        outputs.append(decoded)
        qualities.append(quality)
    found: list[TimedRound] = []
    for number in range(rounds):
        log.info("round %d of %d: both are timed in a new process", number + 1, rounds)
        with supervisor.workers(1) as process:
            try:
                found.append(process.submit(_time_round, sides, outputs, setting, number, synchronised_clock).result())
            except BrokenProcessPool as error:
                raise OSError(f"the process that times has ended ({error}); run the comparison again") from None
    return (qualities[0], qualities[1]), found


def _decode(side: Side, setting: Setting) -> tuple[Outputs, Quality]:
    """Decode and score all examples with one side."""
    opened, sweep = _Opened(side, setting, _open(side.folder, setting.machine)), setting.sweep
    outputs = decoded_outputs(opened.point, opened.pair.decoders, opened.split, opened.request, sweep)
    texts = [opened.pair.decode(tokens) for tokens in (*outputs.tokens, *outputs.further)]
    references = [example.references for example in setting.examples]
    return outputs, score(texts, references, setting.metric, sweep.bootstrap_samples, sweep.seed)


def _time_round(
    sides: tuple[Side, Side], outputs: Sequence[Outputs], setting: Setting, number: int, clock_of: Callable[[str], Clock]
) -> TimedRound:
    """Open both sides and time each timed example with both, back to back in random order.

    Args:
        sides: What is compared.
        outputs: What each side has to generate.
        setting: The examples, and how they are measured.
        number: Of the round; the second side of every other one is opened first.
        clock_of: Gives the clock of a device.
    """
    folders = dict.fromkeys(side.folder for side in (sides if number % 2 == 0 else sides[::-1]))
    pairs, sweep = {folder: _open(folder, setting.machine) for folder in folders}, setting.sweep
    ours, theirs = (_Opened(side, setting, pairs[side.folder]) for side in sides)
    with on_threads(sweep.latency_threads):
        times, generated = measure_in_turn(
            {theirs: theirs.run, ours: ours.run},
            ours.split.timed,
            warmup=sweep.warmup_examples,
            rng=random.Random(f"{sweep.seed} promotion {number}"),  # noqa: S311 (an order, not a secret)
            clock=clock_of(ours.pair.device),
        )
    if sweep.sampling.greedy:
        for side, expected in zip((ours, theirs), outputs, strict=True):
            count_mismatches(side.point, generated[side], expected, side.split, side.pair.decoders)
    return TimedRound(latency_ms=times[ours], vanilla_latency_ms=times[theirs])


def _open(folder: Path, machine: MachineSettings) -> DecodingPair:
    """Open a pair without the bars and notes of `transformers`."""
    quieten_transformers()
    return load_pair(folder, **machine.of_models())


class _Opened:
    """A side whose pair is open in this process, with the examples in its tokens."""

    def __init__(self, side: Side, setting: Setting, pair: DecodingPair) -> None:
        chosen, text = side.point or pair.manifest.point, pair.manifest.text
        self.pair, self.point = pair, SweepPoint(chosen.method, chosen.settings)
        self.split = Split(setting.split, setting.examples, pair.tokenizer, text, setting.sweep)
        drafting = setting.sweep.drafter_sampling
        self.request = Request(text.max_target_tokens, setting.sweep.sampling, setting.sweep.seed, drafter=drafting)
        self._method = pair.method(self.point, self.request)

    def run(self, example: int) -> Generation:
        """Decode one example alone."""
        [generation] = self._method.run([self.split.sources[example]], [example], self.request.max_new_tokens)
        return generation


# The champion in MLflow.


class Champions:
    """The registered model of a task in MLflow. Nothing else reads from MLflow.

    Args:
        task: Its name.

    Raises:
        InputError: MLflow does not open, or holds no pair of the task.
    """

    def __init__(self, task: str) -> None:
        self.name, self._uri = tracking.model_name(task), tracking.tracking_uri()
        try:
            self._client = connect(self._uri)
        except Unavailable as error:
            raise InputError(f"MLflow does not open: {error}; start it, or set MLFLOW_TRACKING_URI") from None
        with self._asking():
            if not self._client.search_registered_models(f"name = '{self.name}'"):
                fix = f"make one by python -m tasks.report --task {task}, and send it by python -m tasks.tracking"
                raise InputError(f"MLflow holds no model {self.name}; {fix}")

    def candidate(self, number: str | None = None) -> ModelVersion:
        """Return a version by its number, or that of the newest report.

        Raises:
            InputError: there is none.
        """
        with self._asking():
            found = self._of_alias(CANDIDATE) if number is None else self._client.get_model_version(self.name, number)
        if found is None:
            raise InputError(f"{self.name} has no version with the alias {CANDIDATE}; report the pair again")
        return found

    def champion(self) -> ModelVersion | None:
        """Return the champion; None where there is none yet."""
        return self._of_alias(CHAMPION)

    def fetch(self, found: ModelVersion, scratch: Path) -> Path:
        """Return the folder of a version's pair: MLflow's own where it lies on this machine, else a copy in `scratch`.

        Raises:
            InputError: it cannot be read, or is not what was registered.
        """
        from mlflow.artifacts import download_artifacts

        local = urlsplit(found.source).scheme in ("", "file")
        scratch.mkdir(parents=True, exist_ok=True)
        with self._asking():
            place = {} if local else {"dst_path": str(scratch)}
            model = Path(download_artifacts(artifact_uri=found.source, tracking_uri=self._uri, **place))
        folder = next((file.parent for file in model.glob("artifacts/*/pair.json")), model)
        if folder_checksum(folder) != found.tags.get(CONTENT_TAG):
            said = f"version {found.version} of {self.name}: its files in MLflow's store are not those that were registered"
            raise InputError(f"{said}; restore the store, or delete the version and report its pair again")
        return folder

    def promote(self, candidate: ModelVersion, champion: ModelVersion | None, why: str) -> None:
        """Give a version the alias `champion`, if that still names the one that it was compared with.

        Raises:
            InputError: the alias was moved meanwhile.
        """
        current = self._of_alias(CHAMPION)
        with self._asking():
            if (current and current.version) != (champion and champion.version):
                now = f"is version {current.version} now" if current else "is gone"
                raise InputError(f"the champion of {self.name} {now}: it changed during the comparison; run it again")
            self._client.set_model_version_tag(self.name, candidate.version, WHY_TAG, why)
            self._client.set_registered_model_alias(self.name, CHAMPION, candidate.version)

    def refuse(self, candidate: ModelVersion, against: str, why: str) -> None:
        """Note on a version why it was not promoted; `against` says what it was compared with, and on which examples."""
        with self._asking():
            self._client.set_model_version_tag(self.name, candidate.version, WHY_TAG, why)
            self._client.set_model_version_tag(self.name, candidate.version, REFUSED_TAG, against)

    def _of_alias(self, alias: str) -> ModelVersion | None:
        with self._asking():
            number = self._client.get_registered_model(self.name).aliases.get(alias)
            return None if number is None else self._client.get_model_version(self.name, number)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn whatever goes wrong between here and MLflow into one line."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"MLflow: {one_line(error)}; look at its server, then run the command again") from error


# The promotion.


def promote(params: Params, task: str, champions: Champions, number: str | None, rounds: int, again: bool) -> tuple[bool, str]:
    """Compare a version with the champion, move the alias or note why not, and record the comparison.

    Args:
        params: The whole file.
        task: The name of the task.
        champions: Its registered model.
        number: Of the candidate; None: the version of the newest report.
        rounds: Of timing.
        again: Compare even where this candidate was refused on these examples and processor.

    Returns:
        Whether the candidate is the champion now, and why in a line.

    Raises:
        InputError: a file, a version or MLflow is missing or damaged.
    """
    if metric_of(params.task(task).metric).name == PERPLEXITY:
        said = f"task {task}: promotion compares the outputs of two pairs, and the metric perplexity scores none"
        raise InputError(f"{said}; compare the reports with python -m tasks.compare")
    candidate, champion = champions.candidate(number), champions.champion()
    if champion is not None and champion.version == candidate.version:
        return True, f"version {candidate.version} is the champion already"
    split = TaskPaths(task).split(REPORTED_ON)
    examples, machine, settings = read_jsonl(split), hardware(), params.task(task)
    processor = machine.get("host_gpu", machine["host_cpu"])
    against = f"champion {champion.version if champion else 'none'}, test {checksum(split)[:12]}, {processor}"
    if not again and candidate.tags.get(REFUSED_TAG) == against:
        # Repeating a comparison until it succeeds would have no level.
        return False, f"this was decided before on the same examples (--again repeats it): {candidate.tags[WHY_TAG]}"
    scratch = CACHE / "promote" / task
    try:
        with host_lock():
            folder = champions.fetch(candidate, scratch / "candidate")
            reference = Side(_ALONE, folder, VANILLA)
            if champion is not None:
                reference = Side(f"champion (version {champion.version})", champions.fetch(champion, scratch / "champion"))
        sides = Side(f"candidate (version {candidate.version})", folder), reference
        with timing_lock(set_up(params.machine)[0].type):
            setting = Setting(examples, REPORTED_ON, settings.metric, settings.sweep, params.machine)
            qualities, timed = measure_sides(sides, setting, rounds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    ours, theirs = (quality.statistics for quality in qualities)
    found = gain(ours, theirs, timed, settings.sweep.bootstrap_samples, settings.sweep.seed)
    promoted, why = decide(found, settings.metric, settings.sweep.margins.no_loss, reference.name)
    tags = {"kind": "promotion", "stage": "promote", "promoted": promoted, "why": why, "against": against}
    origin = lineage(inputs=[split])
    with host_lock():
        if promoted:
            champions.promote(candidate, champion, why)
        else:
            champions.refuse(candidate, against, why)
        name = f"promotion of version {candidate.version}"
        with tracking.Recorder(task, name, {**tags, "candidate": candidate.version, **origin}, {"rounds": rounds}) as run:
            run.log_inputs(datasets([split], "test"))
            run.log_metrics(_numbers(qualities, timed, found))
            run.describe(why)
    return promoted, why


def _numbers(qualities: tuple[Quality, Quality], timed: list[TimedRound], found: Gain) -> dict[str, float]:
    """The numbers under flat names; milliseconds are those of a text, medians over the rounds."""
    numbers: dict[str, float] = {}
    for name, quality, times in zip(("candidate", "reference"), qualities, combined(timed), strict=True):
        numbers |= {f"{name}_quality": quality.value, f"{name}_latency_ms": float(np.mean(times))}
    for name, value, (low, high) in (
        ("quality_difference", found.quality_difference, found.quality_interval),
        ("speed_ratio", found.speed_ratio, found.speed_interval),
    ):
        numbers |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return numbers


def main() -> int:
    """Compare, and return the exit status."""
    parser = task_parser(__doc__)
    parser.add_argument("--version", metavar="N", help="the candidate by its number (default: the version with the alias)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of timing (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="compare a candidate that was refused before")
    add_json(parser)
    arguments = parser.parse_args()
    if arguments.rounds < _FEWEST_ROUNDS:
        raise InputError(f"--rounds is {arguments.rounds}; an interval over rounds needs at least {_FEWEST_ROUNDS}")
    params, task = load(arguments.params), arguments.task
    params.task(task)
    promoted, why = promote(params, task, Champions(task), arguments.version, arguments.rounds, arguments.again)
    answer(arguments, f"{'promoted' if promoted else 'not promoted'}: {why}", promoted=promoted, why=why)
    return 0 if promoted else STATUS_NOT_PROMOTED


if __name__ == "__main__":
    with stage():
        raise SystemExit(main())
