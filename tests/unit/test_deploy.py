"""The descriptions in docs/deploy name parts that exist. No container is started."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "docs" / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROGRAMS = {"postgres", "server", "python", "mlflow", "prefect"}
"""What the services start; `server` is an argument of its image's own program."""


def words(service: dict[str, Any]) -> list[str]:
    command = service["command"]
    return command.split() if isinstance(command, str) else command


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_names_what_exists(name: str) -> None:
    service = SERVICES[name]
    assert service["image"]
    assert words(service)[0] in PROGRAMS
    needs = service.get("depends_on", {})
    assert set(needs) <= set(SERVICES)
    for other, need in needs.items():
        assert need["condition"] != "service_healthy" or "healthcheck" in SERVICES[other], f"{other} has no health check"
    assert {one["source"] for one in service.get("configs", ())} <= set(COMPOSE["configs"])
    for volume in service.get("volumes", ()):
        source = volume.rpartition(":")[0]
        assert source in COMPOSE["volumes"] or (FOLDER / source).exists() or source.startswith("${"), volume
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:"), "only this machine reaches the services"


def test_addresses_name_services() -> None:
    """Hosts in commands and variables are services, at the ports that these listen on."""
    ports = {"postgres": None, "s3": "9000", "mlflow": "5000", "prefect": "4200"}
    found = set()
    for service in SERVICES.values():
        texts = [*words(service), *(str(value) for value in service.get("environment", {}).values())]
        for host, port in re.findall(r"(?:http|asyncpg|postgresql)://(?:\w+@)?([\w.-]+)(?::(\d+))?", " ".join(texts)):
            assert ports[host] == (port or None)
            found.add(host)
    assert found == set(ports)
    for name in ("mlflow", "prefect"):
        assert words(SERVICES[name])[words(SERVICES[name]).index("--port") + 1] == ports[name]


def test_both_workers_take_runs_of_the_pool_of_prefect_yaml() -> None:
    deployments = yaml.safe_load((FOLDER.parents[1] / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    [pool] = {one["work_pool"]["name"] for one in deployments}
    for name in ("worker-1", "worker-2"):
        assert words(SERVICES[name])[:5] == ["prefect", "worker", "start", "--pool", pool]
    stateful = documents()["StatefulSet"]["spec"]
    [container] = stateful["template"]["spec"]["containers"]
    assert container["command"][:5] == ["prefect", "worker", "start", "--pool", pool]
    assert stateful["replicas"] == 2


def documents() -> dict[str, Any]:
    """What the template for Kubernetes describes, by kind."""
    found = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
    return {one["kind"]: one for one in found}


def test_the_template_for_kubernetes_names_what_it_describes() -> None:
    stateful = documents()["StatefulSet"]["spec"]
    pod = stateful["template"]["spec"]
    label = stateful["selector"]["matchLabels"]
    assert stateful["template"]["metadata"]["labels"] == documents()["Service"]["spec"]["selector"] == label
    claims = {claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]}
    for container in [*pod["containers"], *pod["initContainers"]]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= claims
    [reference] = pod["containers"][0]["envFrom"]
    assert reference["configMapRef"]["name"] == documents()["ConfigMap"]["metadata"]["name"]


def test_the_template_for_slurm_is_a_script() -> None:
    file = FOLDER / "slurm.sbatch"
    lines = file.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/bin/bash"
    directives = [number for number, line in enumerate(lines) if line.startswith("#SBATCH ")]
    assert directives and max(directives) < lines.index("set -euo pipefail"), "sbatch reads none after the first command"
    if bash := shutil.which("bash"):
        subprocess.run([bash, "-n", str(file)], check=True)


def test_what_was_not_run_says_so() -> None:
    """In the first line; that of a batch script is its interpreter's."""
    for name, line in (("compose.yaml", 0), ("kubernetes.yaml", 0), ("slurm.sbatch", 1)):
        assert (FOLDER / name).read_text(encoding="utf-8").splitlines()[line].startswith("# Not run here"), name
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(name in page for name in ("compose.yaml", "kubernetes.yaml", "slurm.sbatch"))
    assert "have not been run" in page
