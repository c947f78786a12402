"""Checks torch's build, the GPU, and what training on several hosts needs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tasks.doctor.facts import Facts
from tasks.doctor.finding import MISSING, OK, WARNING, Check, Finding

_NVIDIA = "0x10de"
"""The vendor in the identity of a PCI device."""
_DRIVER = "install the GPU's driver, or start the container with the GPU; without a GPU, there is nothing to do"


def torch(facts: Facts) -> Finding:
    """Torch's version and build, after a product of matrices on the CPU."""
    if facts.torch.failure:
        return Finding(MISSING, facts.torch.failure, facts.repair(facts.torch.failure))
    found = facts.torch.values[-1]["value"]
    return Finding(OK, f"{found['version']}, built for {_built_for(found)}, {found['threads']} threads by default")


def _built_for(found: dict[str, Any]) -> str:
    return f"CUDA {found['cuda']}" if found["cuda"] else f"ROCm {found['hip']}" if found["hip"] else "the CPU alone"


def gpu(facts: Facts) -> Finding:
    """Whether the models run on a GPU, and if not, whether there seems to be one; missing where params.yaml asks for it."""
    wanted = str(facts.machine.get("device", "auto"))
    absent = MISSING if wanted == "cuda" else WARNING
    if facts.torch.failure:
        return Finding(absent, "not known without torch", "see torch")
    found = facts.torch.values[-1]["value"]
    broken = [f"{one['name']}: {one['failure']}" for one in found["gpus"] if one["failure"]]
    if broken and wanted != "cpu":  # auto takes a GPU that torch sees
        fix = "install a build of torch for this GPU, or set machine.device to cpu in params.yaml"
        return Finding(MISSING, broken[0], fix)
    if found["gpus"]:
        unused = "" if wanted != "cpu" else "; not used, as machine.device is cpu in params.yaml"
        return Finding(OK, ", ".join(f"{one['name']} ({one['bytes'] / 1e9:.0f} GB)" for one in found["gpus"]) + unused)
    if found["cuda"] or found["hip"]:
        said = f"torch is built for {_built_for(found)}, but finds no GPU ({found['driver'] or 'no reason given'})"
        return Finding(WARNING if wanted != "cuda" else MISSING, said, _DRIVER)
    if nvidia_devices():
        said = "there is an NVIDIA device, but torch is built for the CPU alone"
        return Finding(absent, said, "install a build of torch for CUDA if the models are to run on it")
    if wanted == "cuda":
        fix = "set machine.device to auto or cpu in params.yaml, or install a build of torch for CUDA"
        return Finding(MISSING, "none, but machine.device is cuda in params.yaml", fix)
    return Finding(OK, "none; the models run on the CPU")


def nvidia_devices(system: Path = Path("/sys/bus/pci/devices"), devices: Path = Path("/dev")) -> bool:
    """Whether Linux shows an NVIDIA device, with a driver or without one."""
    vendors = (file.read_text(encoding="ascii", errors="replace").strip() for file in system.glob("*/vendor"))
    return any(devices.glob("nvidia[0-9]*")) or _NVIDIA in vendors


def hosts(facts: Facts) -> Finding:
    """The programs that reach the hosts of a hostfile, where params.yaml names one."""
    hostfile = facts.machine.get("hostfile")
    if hostfile is None:
        return Finding(OK, "this one alone")
    absent = [program for program in ("ssh", "pdsh") if shutil.which(program) is None]
    if not Path(str(hostfile)).is_file():
        return Finding(MISSING, f"there is no hostfile {hostfile}", "write it, or leave out machine.hostfile in params.yaml")
    if absent:
        return Finding(MISSING, f"{' and '.join(absent)} not on PATH", f"install {' and '.join(absent)}")
    return Finding(OK, f"those of {hostfile}, reached with pdsh; whether they answer is not checked")


CHECKS = (
    Check("torch", "every stage that runs a model", torch, required=True),
    Check("GPU", "models on a GPU; without one, they run on the CPU", gpu),
    Check("hosts", "training on several hosts", hosts),
)
