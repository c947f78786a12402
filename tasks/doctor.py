"""Checks this machine and says what is missing for what.

`python -m tasks.doctor` prints a line for each check, and below it, where something is wrong, what needs it and what to do.
`--json` prints the same as one line for programs. The exit status is 0 if everything that `make repro` needs is there, and 1 if
something is missing; a warning is about something that `make repro` does without. No connection leaves this machine.

The module needs only the standard library and runs with older versions of Python, too, since it has to report on a machine
where the set-up failed. Heavy packages are imported in child processes, which may crash or hang: `python -m tasks.doctor PROBE`
runs one of `PROBES`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tasks.console import command_parser, log, set_up

OK, WARNING, MISSING = "ok", "warning", "missing"
"""States: nothing to do; `make repro` works, but something else does not or it is slow; `make repro` does not work."""
ENVIRONMENT, LOCK, CUDA_LOCK = Path(".venv"), Path("requirements.lock"), Path("requirements-cuda.lock")
READY = ENVIRONMENT / ".ready"
"""The file that `make setup` writes when it has finished."""
MEMORY_INFO, DEVICES = Path("/proc/meminfo"), Path("/dev")

_LEAST_MEMORY = 2e9
"""Bytes, estimated: the packages of a stage take 0.4 GB, and the models and batches of the embedded data are small."""
_LEAST_DISK, _SCARCE_DISK, _ENVIRONMENT_SIZE = 0.5e9, 5e9, 3e9
"""Bytes, estimated: for a run on the embedded data, for one on larger data, and for the packages, those for a GPU excepted."""
_PROBE_SECONDS = 180.0
"""A probe that takes longer counts as hanging; the slowest compiles the native runtime, in some 30 seconds."""
_OFFLINE = dict.fromkeys(("DO_NOT_TRACK", "DVC_NO_ANALYTICS", "HF_HUB_OFFLINE", "MLFLOW_DISABLE_TELEMETRY"), "1")
_OFFLINE["PREFECT_SERVER_ANALYTICS_ENABLED"] = "0"
_MODULES = {"pyyaml": "yaml", "vl-convert-python": "vl_convert"}
"""Modules with a name of their own; others have the package's, with `_` for `-`."""
_LONGEST = 240
"""Characters of a message."""


def shortened(text: str) -> str:
    """Return the beginning of a text as one line."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "..."


def one_line(error: BaseException) -> str:
    """Return an exception's type and the beginning of its message."""
    return shortened(f"{type(error).__name__}: {error}")


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return the first names, separated by commas, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# --- child processes ------------------------------------------------------------------------------------------------------


Answer = tuple[Any, str]
"""What a probe returned, and one line on why it failed; empty if it did not."""


def probe(name: str, *arguments: str, seconds: float = _PROBE_SECONDS) -> Answer:
    """Run one of `PROBES` in a new process of this Python, offline."""
    # Importing Prefect makes its folder, which is in the project as for a flow.
    environment = {"PREFECT_HOME": str(Path(".cache", "prefect").absolute()), **os.environ, **_OFFLINE}
    command = [sys.executable, "-m", "tasks.doctor", name, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False, env=environment)  # noqa: S603
    except subprocess.TimeoutExpired:
        return None, f"no answer within {seconds:g} s"
    if done.returncode < 0:
        return None, f"the process was ended by {signal.Signals(-done.returncode).name}"
    said, why = (text.decode(errors="replace").strip().splitlines() for text in (done.stdout, done.stderr))
    if not said:
        return None, shortened(why[-1] if why else f"exit status {done.returncode}")
    value, failure = json.loads(said[-1])
    return value, failure


def probe_import(*modules: str) -> Any:
    """Import modules and return the version of the last."""
    return [getattr(importlib.import_module(name), "__version__", "of no version") for name in modules][-1]


def probe_torch() -> Any:
    """Return torch's version and build, the vectors that it uses, and each GPU; each device first multiplies a matrix."""
    import torch

    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append({"name": f"{properties.name} ({properties.total_memory / 1e9:.0f} GB)", "failure": ""})
        try:
            (torch.ones(32, 32, device=f"cuda:{index}") @ torch.ones(32, 32, device=f"cuda:{index}")).tolist()
        except RuntimeError as error:  # a build without code for this GPU, a GPU that others have filled
            gpus[-1]["failure"] = one_line(error)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}" if torch.version.hip else ""
    (torch.ones(32, 32) @ torch.ones(32, 32)).tolist()
    vectors = torch.backends.cpu.get_cpu_capability()
    return {"version": torch.__version__, "build": build, "vectors": vectors, "gpus": gpus}


def probe_compiler() -> Any:
    """Build the native runtime as decoding does, or find it built; return the compiler, and why that failed."""
    from tasks.decoding.runtimes import compiled

    command = compiled.compiler_command()
    if command is None or compiled.library() is not None:
        return command and shlex.join(command), ""
    with tempfile.TemporaryDirectory() as folder:
        done = compiled.build(command, compiled.KERNEL / "kernel.cpp", Path(folder, "kernel.so"))
    error = re.search(r"^.*error.*$", done.stderr.decode(errors="replace"), re.MULTILINE)
    return shlex.join(command), error[0] if error else "what it builds cannot be loaded"


def probe_training() -> Any:
    """Take one optimiser step with the engine that the stages train with, on their device; return DeepSpeed's version."""
    import torch

    from tasks.training.engine import backward, create_engine
    from tasks.training.settings import TrainingSettings

    wanted = Facts().machine.get("device", "auto")
    device = torch.device("cuda" if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()) else "cpu")
    settings, model = TrainingSettings(optimizer="adamw"), torch.nn.Linear(2, 1).to(device)
    engine = create_engine(model, settings, device)
    backward(engine, engine(torch.ones(1, 2, device=device)).sum(), settings)
    engine.step()
    return f"{importlib.metadata.version('deepspeed')} takes a training step"


def probe_repository() -> Any:
    """Open the DVC repository of this folder with its graph; return DVC's version and the number of stages."""
    from dvc.repo import Repo

    return f"{importlib.metadata.version('dvc')}, {len(Repo('.').index.stages)} stages"


PROBES = (probe_import, probe_torch, probe_compiler, probe_training, probe_repository)
BY_NAME: dict[str, Callable[..., Any]] = {one.__name__.removeprefix("probe_"): one for one in PROBES}


def answer(name: str, *arguments: str) -> None:
    """Run a probe in this process and print what it returned and why it failed, as a line of JSON."""
    # Libraries that print go to standard error, so that standard output holds the answer alone.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        try:
            found = BY_NAME[name](*arguments), ""
        except (Exception, SystemExit) as error:  # noqa: BLE001 (a broken installation may raise anything)
            found = None, one_line(error)
        print(json.dumps(found), file=answers)


# --- checks ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    state: str
    found: str
    """One line."""
    fix: str = ""
    """What to do, one line; empty where the state is ok."""


class Facts:
    """What several checks look at, each found once and only when a check asks for it."""

    @cached_property
    def torch(self) -> Answer:
        """The answer of the probe `torch`."""
        return probe("torch")

    @cached_property
    def machine(self) -> dict[str, Any]:
        """The section `machine` of params.yaml; empty if it cannot be read, which `python -m tasks.config` explains."""
        try:
            import yaml

            return dict(yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))["machine"])
        except Exception:  # noqa: BLE001 (no yaml, no file, no such section, no mapping)
            return {}

    @cached_property
    def in_environment(self) -> bool:
        """Whether this Python is that of `.venv`."""
        return ENVIRONMENT.exists() and Path(sys.prefix).resolve() == ENVIRONMENT.resolve()

    def repair(self, failure: str = "ModuleNotFoundError") -> str:
        """Say what to do about a package that failed so; pip leaves a damaged one of the right version as it is."""
        if not self.in_environment:
            return f"run make setup, which installs {LOCK} into {ENVIRONMENT}"
        if "git repo" in failure:
            return "install git and clone the repository with it: DVC works only inside of one"
        if "ModuleNotFoundError" in failure:
            return f"remove {READY} and run make setup, which installs what is missing of {LOCK}"
        return f"fix what the message names; if the package is damaged, remove {ENVIRONMENT} and run make setup"


def environment(facts: Facts) -> Finding:
    """Whether `make setup` has finished, and whether this Python is the one that `make` uses."""
    own = ENVIRONMENT / "bin" / "python"
    if not READY.exists():
        return Finding(WARNING, "make setup has not finished", "run make setup and read its last lines")
    if shutil.which(str(own)) is None:
        return Finding(MISSING, f"{own} does not run", f"remove {ENVIRONMENT} and run make setup")
    if not facts.in_environment:
        said = f"{sys.executable} is not the Python of {ENVIRONMENT}; all packages below are its own"
        return Finding(WARNING, said, f"run {own} -m tasks.doctor to check what make repro uses")
    return Finding(OK, f"{ENVIRONMENT}, set up")


def python(_: Facts) -> Finding:
    """This Python against `requires-python`, by major and minor version."""
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    wanted = next(line.partition("=")[2].strip().strip('"') for line in text.splitlines() if line.startswith("requires-python"))
    here, found = sys.version_info[:2], f"{platform.python_version()}, {sys.executable}"
    for sign, major, minor in re.findall(r"(>=|<)\s*(\d+)\.(\d+)", wanted):
        if (here < (int(major), int(minor))) == (sign == ">="):
            fix = f"install a Python that is {wanted}, remove {ENVIRONMENT} and run make setup PYTHON=NAME with its name"
            return Finding(MISSING, f"{found}; needs {wanted}", fix)
    return Finding(OK, found)


def versions(facts: Facts) -> Finding:
    """Installed versions against the lock file; a local part, such as `+cpu`, is another build of the same version."""
    entry = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;]+)", re.MULTILINE)
    everywhere, cuda = (entry.findall(lock.read_text(encoding="utf-8")) for lock in (LOCK, CUDA_LOCK))
    # The others beside torch are there only where torch is built for CUDA.
    locked = dict(everywhere + [one for one in cuda if one[0] == "torch"])
    found = {re.sub(r"[-_.]+", "-", str(one.name)).lower(): str(one.version) for one in importlib.metadata.distributions()}
    absent = [name for name in locked if name not in found]
    differing = [name for name, version in locked.items() if str(found.get(name, version)).partition("+")[0] != version]
    other = [f"{name} {found[name]} (locked: {locked[name]})" for name in differing]
    if not absent and not other:
        return Finding(OK, f"all {len(locked)} packages as in {LOCK}")
    parts = ((other, "differ"), (absent, "not installed"))
    said = [f"{len(names)} of {len(locked)} {what}: {listed(names)}" for names, what in parts if names]
    return Finding(WARNING, "; ".join(said), facts.repair())


def cores(facts: Facts) -> Finding:
    """The processor, its cores for this process and its control group, and how busy the machine is."""
    from tasks import machine
    from tasks.lineage import hardware

    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit, threads = min(own, machine.core_limit() or own), facts.machine.get("threads") or own
    said = f"{hardware()['host_cpu']}, {limit:g} of {os.cpu_count()} cores for this process, load {os.getloadavg()[0]:.1f}"
    if threads > limit:  # without a number torch starts a thread for each core, whatever the container's limit
        said += f"; {threads} threads compete for them"
        return Finding(WARNING, said, f"set machine.threads in params.yaml to at most {max(1, int(limit))}")
    return Finding(OK, said)


def memory(_: Facts) -> Finding:
    """Memory that is available, caches included, and the limit of the control group."""
    from tasks import machine

    found = re.search(r"^MemAvailable:\s+(\d+) kB", MEMORY_INFO.read_text(encoding="ascii"), re.MULTILINE)
    free, limit = 1024.0 * int(found[1]) if found else 0.0, machine.memory_limit()
    said = f"{free / 1e9:.1f} GB available" + (f"; the container's limit is {limit / 1e9:.1f} GB" if limit is not None else "")
    if min(free, limit or free) < _LEAST_MEMORY:
        return Finding(WARNING, said, f"end other programs or raise the limit, to at least {_LEAST_MEMORY / 1e9:g} GB")
    return Finding(OK, said)


def disk(_: Facts) -> Finding:
    """Write and flush a file here, then compare the free space with what is still to be written."""
    with tempfile.TemporaryFile(dir=Path.cwd()) as file:
        file.write(bytes(65536))
        file.flush()
        os.fsync(file.fileno())
    free, still = shutil.disk_usage(Path.cwd()).free, 0.0 if READY.exists() else _ENVIRONMENT_SIZE
    for least, state in ((_LEAST_DISK, MISSING), (_SCARCE_DISK, WARNING)):
        if free < least + still:
            return Finding(state, f"{free / 1e9:.1f} GB free here", f"make room: at least {(least + still) / 1e9:.1f} GB")
    return Finding(OK, f"{free / 1e9:.1f} GB free here")


def torch(facts: Facts) -> Finding:
    """Torch's version and build, after a product of matrices on the CPU."""
    found, failure = facts.torch
    if failure:
        return Finding(MISSING, failure, facts.repair(failure))
    return Finding(OK, f"{found['version']}, built for {found['build'] or 'the CPU alone'}, with {found['vectors']}")


def gpu(facts: Facts) -> Finding:
    """Whether the models run on a GPU, and if not, whether there seems to be one; missing where params.yaml asks for it."""
    wanted = str(facts.machine.get("device", "auto"))
    absent = MISSING if wanted == "cuda" else WARNING
    found, failure = facts.torch
    if failure:
        return Finding(absent, "not known without torch", "see torch")
    broken = [f"{one['name']}: {one['failure']}" for one in found["gpus"] if one["failure"]]
    if broken and wanted != "cpu":  # auto takes a GPU that torch sees
        return Finding(MISSING, broken[0], "install a build of torch for this GPU, or set machine.device to cpu in params.yaml")
    if found["gpus"]:
        unused = "" if wanted != "cpu" else "; not used, as machine.device is cpu in params.yaml"
        return Finding(OK, ", ".join(one["name"] for one in found["gpus"]) + unused)
    if found["build"]:
        fix = "if there is one, run python -c 'import torch; torch.cuda.init()', which says why, and install the GPU's driver"
        return Finding(absent, f"torch is built for {found['build']}, but finds no GPU", fix)
    if any(DEVICES.glob("nvidia[0-9]*")):
        said = "there is an NVIDIA device, but torch is built for the CPU alone"
        return Finding(absent, said, "install a build of torch for CUDA if the models are to run on it")
    if wanted == "cuda":
        return Finding(MISSING, "none, but machine.device is cuda in params.yaml", "set machine.device to auto or cpu there")
    return Finding(OK, "none; the models run on the CPU")


def compiler(facts: Facts) -> Finding:
    """Whether the native runtime can be built and loaded; missing where params.yaml asks for it."""
    needed = facts.machine.get("runtime") == "native" or facts.machine.get("dtype") == "int8"
    absent, install = MISSING if needed else WARNING, "install g++ or clang++ (Debian, Ubuntu: apt install g++)"
    found, failure = probe("compiler")
    if failure:
        return Finding(absent, failure, facts.repair(failure))
    command, failure = found
    if command is None:
        named = os.environ.get("CXX")
        return Finding(absent, f"CXX is {named}, which is not on PATH" if named else "no C++ compiler is on PATH", install)
    if failure:
        return Finding(absent, shortened(f"{command} fails: {failure}"), f"{install}, or name another compiler in CXX")
    return Finding(OK, f"{command} builds the native runtime")


def libraries(facts: Facts) -> Finding:
    """Import every dependency of the project; where that fails, each in a process of its own."""
    text = Path("pyproject.toml").read_text(encoding="utf-8").partition("\ndependencies = [")[2].partition("]")[0]
    names = re.findall(r'^ +"([\w.-]+)', text, re.MULTILINE)
    modules = {name: _MODULES.get(name, name.replace("-", "_")) for name in names}
    if together := probe("import", *modules.values())[1]:
        alone = {name: probe("import", module)[1] for name, module in modules.items()}
        failures = [f"{name} ({failure})" for name, failure in alone.items() if failure] or [together]
        said = f"{len(failures)} of {len(names)} cannot be imported: {listed(failures, most=3)}"
        return Finding(MISSING, said, facts.repair(said))
    return Finding(OK, f"all {len(names)} packages can be imported")


def by_probe(state: str, name: str, *arguments: str) -> Callable[[Facts], Finding]:
    """Return a check that runs a probe, which returns what is found."""

    def look(facts: Facts) -> Finding:
        found, failure = probe(name, *arguments)
        return Finding(state, failure, facts.repair(failure)) if failure else Finding(OK, str(found))

    return look


@dataclass(frozen=True)
class Check:
    """One thing to look at."""

    name: str
    needed_for: str
    look: Callable[[Facts], Finding]
    required: bool = False
    """Whether `make repro` needs it."""


CHECKS = (
    Check("environment", "all commands but this one; make repro sets it up if necessary", environment),
    Check("Python", "everything", python, required=True),
    Check("versions", "the results that the documentation reports, and the tests", versions),
    Check("cores", "speeds: threads that wait for cores are slow", cores),
    Check("memory", "a stage: the system ends one that finds too little", memory),
    Check("disk", "data, models, results, and DVC's copies of them", disk, required=True),
    Check("torch", "every stage that runs a model", torch, required=True),
    Check("GPU", "models on a GPU; without one, they run on the CPU", gpu),
    Check("compiler", "the native runtime; without it, decoding falls back to PyTorch and is slower", compiler),
    Check("libraries", "every stage", libraries, required=True),
    Check("DeepSpeed", "training: the stages finetune, control and align", by_probe(MISSING, "training"), required=True),
    Check("DVC", "make repro, which runs the stages by DVC", by_probe(MISSING, "repository"), required=True),
    Check("MLflow", "the record of all runs, which waits on disk meanwhile", by_probe(WARNING, "import", "mlflow")),
    Check("Prefect", "python -m flows.pipeline and flows.serve", by_probe(WARNING, "import", "prefect")),
)
_NAMES, _STATES = max(len(check.name) for check in CHECKS), len(WARNING)


# --- the command ----------------------------------------------------------------------------------------------------------


def run(check: Check, facts: Facts) -> dict[str, str]:
    """Run a check and return its name, state, finding, what needs it and what to do, the last two empty where it is ok.

    An exception counts as the thing not being there, since nothing shows that it works.
    """
    try:
        one = check.look(facts)
    except Exception as error:  # noqa: BLE001 (a broken installation may raise anything)
        one = Finding(MISSING if check.required else WARNING, f"not checked: {one_line(error)}", "fix what the message names")
    needed_for = "" if one.state == OK else check.needed_for
    return {"name": check.name, "state": one.state, "found": one.found, "needed_for": needed_for, "fix": one.fix}


def main(argv: Sequence[str] | None = None, checks: Sequence[Check] = CHECKS) -> int:
    """Run the checks, print what they find, each as soon as it is known, and return the exit status."""
    set_up()
    parser = command_parser(__doc__)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args(argv)
    if not Path("dvc.yaml").is_file():
        log.error("there is no dvc.yaml here; run the command in the root folder of the repository")
        return 2
    facts, results, indent = Facts(), list[dict[str, str]](), " " * (_NAMES + _STATES + 4)
    for check in checks:
        one = run(check, facts)
        results.append(one)
        if not options.json and (one["state"] != OK or log.isEnabledFor(logging.INFO)):
            print(f"{one['name']:{_NAMES}}  {one['state']:{_STATES}}  {one['found']}", flush=True)
            if one["state"] != OK:
                print(f"{indent}needed for: {one['needed_for']}\n{indent}to do: {one['fix']}", flush=True)
    missing, warnings = ([one["name"] for one in results if one["state"] == state] for state in (MISSING, WARNING))
    if options.json:
        print(json.dumps({"ready": not missing, "missing": missing, "warnings": warnings, "checks": results}))
    else:
        said = f"missing for make repro: {', '.join(missing)}" if missing else "everything that make repro needs is there"
        print(f"\n{said}" + (f"; warnings: {', '.join(warnings)}" if warnings else ""))
    return 1 if missing else 0


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in BY_NAME:
        answer(*sys.argv[1:])
    else:
        raise SystemExit(main())
