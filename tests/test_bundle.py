"""The bundle for Databricks against Databricks' own data classes, the files it names and the commands it calls."""

from __future__ import annotations

import fnmatch
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import typer
from databricks.bundles.jobs import Job
from databricks.bundles.schemas import Schema
from databricks.bundles.volumes import Volume
from deltalake import DeltaTable

from tests.bundle import (
    ROOT,
    Node,
    bundle,
    complex_variables,
    deployed,
    flags,
    job_files,
    jobs,
    keys,
    load,
    project,
    references,
    replaced,
    texts,
    wheel_name,
)
from tests.messages import SECOND, message, table
from windrow.cli import app, main
from windrow.settings.settings import Settings

JOBS = ROOT / "jobs"
COMMANDS = {"run_batches": "run", "check_quality": "quality", "maintain_tables": "maintain"}
WITHOUT_JVM = ["run_batches", "maintain_tables"]
TARGETS = sorted(bundle()["targets"])
COMPUTE = {"environment_key": "environments", "job_cluster_key": "job_clusters"}
PLATFORM = {"workspace.file_path", "workspace.current_user.userName", "workspace.current_user.short_name"}
PLATFORM |= {"bundle.name", "bundle.target"}
ANCHORS = {"serverless", "classic"}
KNOWN = {
    "": {"bundle", "include", "sync", "artifacts", "variables", "resources", "targets"} | ANCHORS,
    "bundle": {"name", "databricks_cli_version"},
    "sync": {"include", "exclude", "paths"},
    "artifact": {"type", "path", "build", "dynamic_version", "executable", "files"},
    "variable": {"description", "default", "type", "lookup"},
    "target": {"default", "mode", "variables", "workspace", "run_as", "permissions", "presets", "resources", "sync"},
}


def tasks(of: dict[str, Node]) -> list[tuple[str, Node, Node]]:
    """Return the tasks of jobs that run a script, each with the name of its job and the job."""
    return [(name, job, task) for name, job in of.items() for task in job["tasks"] if "spark_python_task" in task]


class TestSchema:
    @pytest.mark.parametrize("target", TARGETS)
    def test_jobs(self, target: str) -> None:
        """
        What a target deploys is what Databricks' own classes read of it: no key and no value is unknown to them.
        """
        for job in (jobs() | deployed(target)).values():
            assert Job.from_dict(job).as_dict() == {key: value for key, value in job.items() if value != []}

    def test_typing_mistake(self) -> None:
        """
        A misspelt key deep in a job does not pass.
        """
        job = jobs()["run_batches"]
        job["tasks"][0]["max_retrys"] = job["tasks"][0].pop("max_retries")
        with pytest.raises(ValueError, match="max_retrys"):
            Job.from_dict(job)

    def test_volumes(self) -> None:
        """
        So it is with the volumes.
        """
        for name, volume in bundle()["resources"]["volumes"].items():
            assert Volume.from_dict(volume).as_dict() == volume
            for target in bundle()["targets"].values():
                laid = volume | target["resources"].get("volumes", {}).get(name, {})
                assert Volume.from_dict(laid).as_dict() == laid
                granted = [grant["principal"] for grant in laid.get("grants", ())]
                assert granted == (["${var.service_principal}"] if target["mode"] == "production" else [])

    @pytest.mark.parametrize("target", [target for target in TARGETS if target.startswith("dev")])
    def test_schemas(self, target: str) -> None:
        """
        Development makes the schema in which its tables are; nobody has to make one before.
        """
        [(name, schema)] = bundle()["targets"][target]["resources"]["schemas"].items()
        assert Schema.from_dict(schema).as_dict() == schema
        assert bundle()["targets"][target]["variables"]["schema"] == f"${{resources.schemas.{name}.name}}"

    def test_rest(self) -> None:
        """
        Of what no class describes every key is one of the configuration's reference.
        """
        top = bundle()
        assert top.keys() <= KNOWN[""]
        assert top["bundle"].keys() <= KNOWN["bundle"]
        assert top["sync"].keys() <= KNOWN["sync"]
        for kind in ("artifact", "variable", "target"):
            assert {key for part in top[f"{kind}s"].values() for key in part} <= KNOWN[kind]

    def test_one_job_a_file(self) -> None:
        """
        Each file holds one job, under its own name, beside the script it runs.
        """
        for file in job_files():
            assert list(load(file)["resources"]["jobs"]) == [file.name.removesuffix(".job.yml")]
        assert {file.stem for file in JOBS.glob("*.py")} == {name for name, _, _ in tasks(jobs())}

    def test_permissions(self) -> None:
        """
        Who deploys says in one place who else may see, run or manage the jobs.
        """
        permissions = [{"group_name": "operators", "level": "CAN_MANAGE_RUN"}]
        for job in jobs().values():
            assert job["permissions"] == "${var.permissions}"
            shared = replaced(job, complex_variables("prod") | {"${var.permissions}": permissions})
            assert Job.from_dict(shared).as_dict() == shared


class TestReferences:
    def test_variables(self) -> None:
        """
        Every variable that is used is declared, with a description and a default, and every declared one is used.
        """
        declared = bundle()["variables"]
        used = {name for name in references([bundle(), jobs()]) if name.startswith("var.")}
        assert used == {f"var.{name}" for name in declared}
        assert all(variable["description"].endswith(".") and "default" in variable for variable in declared.values())
        assert {name for target in bundle()["targets"].values() for name in target.get("variables", {})} <= set(
            declared
        )

    def test_resources(self) -> None:
        """
        Whatever else is referred to is a job or volume of the bundle, or given by the platform.
        """
        others = {name for name in references([bundle(), jobs()]) if not name.startswith("var.")}
        made = {f"resources.jobs.{name}.id" for name in jobs()}
        made |= {f"resources.volumes.{name}.name" for name in bundle()["resources"]["volumes"]}
        made |= {"resources.schemas.windrow.name"}
        assert others <= PLATFORM | made

    def test_parameters(self) -> None:
        """
        Every job parameter that a task takes is one of its job's, and every one of the job's is taken.
        """
        for name, job, task in tasks(jobs()):
            taken = {
                parameter for text in texts(task) for parameter in re.findall(r"\{\{job\.parameters\.(\w+)\}\}", text)
            }
            assert taken == {parameter["name"] for parameter in job["parameters"]}, name

    def test_files(self) -> None:
        """
        Every file that a task names is in the repository and goes up with the bundle.
        """
        excluded = bundle()["sync"]["exclude"]
        for _, _, task in tasks(jobs()):
            script = JOBS / task["spark_python_task"]["python_file"]
            assert flags(task)["config"] == "${workspace.file_path}/${var.settings}"
            settings = ROOT / bundle()["variables"]["settings"]["default"]
            for file in (script, settings):
                assert file.is_file()
                assert not any(fnmatch.fnmatch(str(file.relative_to(ROOT)), pattern) for pattern in excluded)
        assert all(any(ROOT.glob(pattern)) for pattern in excluded)

    def test_tasks(self) -> None:
        """
        Every task waits for tasks of its own job only, and every job that a task starts is there.
        """
        for job in jobs().values():
            keys = [task["task_key"] for task in job["tasks"]]
            waited = {key["task_key"] for task in job["tasks"] for key in task.get("depends_on", [])}
            assert len(set(keys)) == len(keys)
            assert waited < set(keys)

    def test_order(self) -> None:
        """
        The job windrow starts each of the others once: run, then check, then maintain.
        """
        chain = jobs()["windrow"]["tasks"]
        assert [task["run_job_task"]["job_id"].split(".")[2] for task in chain] == [
            "run_batches",
            "check_quality",
            "maintain_tables",
        ]
        assert [[key["task_key"] for key in task.get("depends_on", [])] for task in chain] == [[], ["run"], ["check"]]


class TestTargets:
    @pytest.mark.parametrize("target", TARGETS)
    def test_compute(self, target: str) -> None:
        """
        In every target each script runs on one kind of compute, which its job has.
        """
        for name, job, task in tasks(deployed(target)):
            [key] = COMPUTE.keys() & task.keys()
            assert [place[key] for place in job[COMPUTE[key]]] == [task[key]], name
            assert ("libraries" in task) == (key == "job_cluster_key")

    @pytest.mark.parametrize("target", TARGETS)
    def test_packages(self, target: str) -> None:
        """
        Each script has the wheel that the build makes, never a Spark of its own, and the check what [quality] asks for.
        """
        build = bundle()["artifacts"]["windrow"]["build"].split()
        made = f"./{build[build.index('--wheel-dir') + 1]}/{wheel_name()}"
        for name, job, task in tasks(deployed(target)):
            wheel, *more = packages(job, task)
            assert fnmatch.fnmatch(made, wheel)
            assert more == (project()["optional-dependencies"]["quality"] if name == "check_quality" else [])

    def test_kinds(self) -> None:
        """
        Development pauses its schedule and triggers, which nothing in a job overrides; production runs as nobody's own
        account, and each of the two comes with serverless and with classic compute.
        """
        modes = {name: target["mode"] for name, target in bundle()["targets"].items()}
        assert modes == {name: "development" if name.startswith("dev") else "production" for name in TARGETS}
        assert TARGETS == ["dev", "dev_classic", "prod", "prod_classic"]
        assert [name for name in TARGETS if bundle()["targets"][name].get("default")] == ["dev"]
        assert "pause_status" not in set(keys(jobs()))
        for name in TARGETS:
            target = bundle()["targets"][name]
            assert ("run_as" in target and "root_path" in target["workspace"]) if modes[name] == "production" else True
            places = {key for _, _, task in tasks(deployed(name)) for key in COMPUTE.keys() & task.keys()}
            assert places == {"job_cluster_key" if name.endswith("classic") else "environment_key"}

    def test_never_at_once(self) -> None:
        """
        No job runs twice at once, further starts wait, each ends after some time, and a failure sends a mail.
        """
        for job in jobs().values():
            assert (job["max_concurrent_runs"], job["queue"]) == (1, {"enabled": True})
            assert job["timeout_seconds"] >= sum(
                task.get("timeout_seconds", 0) * (1 + task.get("max_retries", 0)) for task in job["tasks"]
            )
            assert job["email_notifications"] == {"on_failure": ["${var.notify}"]}
        assert all({"timeout_seconds", "max_retries"} <= task.keys() for _, _, task in tasks(jobs()))


class TestCommands:
    @pytest.mark.parametrize("job", COMMANDS)
    def test_flags(self, job: str) -> None:
        """
        Every flag that a job passes is one of its command.
        """
        command = typer.main.get_command(app).commands[COMMANDS[job]]  # type: ignore[attr-defined]
        known = {option for parameter in command.params for option in parameter.opts}
        [job_flags] = [flags(task) for name, _, task in tasks(jobs()) if name == job]
        assert {f"--{flag}" for flag in job_flags} <= known

    def test_settings(self) -> None:
        """
        The settings that the jobs share are settings, and leave tables and places to the flags.
        """
        shared = Settings.load(JOBS / "windrow.toml")
        assert shared.engine == "spark"
        assert shared.model_fields_set == {"engine", "max_memory_bytes", "rules"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Path:
    """A directory with a depot, a ledger and settings of the embedded engine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "windrow.toml").write_text('depot = "depot"\nledger = "ledger"\nengine = "embedded"\n')
    pq.write_table(table([message("a", 100 * SECOND, 100 * SECOND)]), tmp_path / "messages.parquet")
    assert main(["ingest", "messages.parquet"]) == 0
    assert main(["run"]) == 0
    capfd.readouterr()
    return tmp_path


@pytest.mark.ci
class TestScripts:
    @pytest.mark.parametrize("job", WITHOUT_JVM)
    def test_success_just_ends(self, here: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        A job that succeeds raises no SystemExit, which a platform may take for a failure.
        """
        started(job, monkeypatch, "--config=windrow.toml", "--depot=depot", "--ledger=ledger")

    @pytest.mark.parametrize("job", WITHOUT_JVM)
    @pytest.mark.parametrize(
        ("flags", "status", "reason"),
        [("--depot=depot", 0, ""), ("--depot=depot --ledger=./messages.parquet", 3, "WINDROW-TABLE")],
    )
    def test_status(self, here: Path, job: str, flags: str, status: int, reason: str) -> None:
        """
        A job ends with the status of its command, and the reason of a failure stands on standard error.
        """
        assert_ends(here, job, flags, status, reason)

    def test_waits_for_its_depot(
        self, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """
        The first run after a deployment says that there is no depot yet, and succeeds.
        """
        started("run_batches", monkeypatch, "--config=windrow.toml", "--depot=nowhere", "--ledger=none")
        assert "Nothing to do yet: there is no depot at nowhere" in capfd.readouterr().out
        assert not (here / "none").exists()

    @pytest.mark.parametrize("job", ["check_quality", "maintain_tables"])
    def test_waits_for_its_ledger(
        self, here: Path, job: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """
        Where no run has made the ledger yet, as without messages in a fresh deployment, the others say so and succeed.
        """
        flags = ["--config=windrow.toml", "--ledger=none", *(["--depot=depot"] if job == "maintain_tables" else [])]
        started(job, monkeypatch, *flags)
        assert "Nothing to do yet: there is no ledger at none" in capfd.readouterr().out
        assert main([COMMANDS[job], *flags]) == 3
        assert not (here / "none").exists()

    @pytest.mark.parametrize("job", COMMANDS)
    @pytest.mark.parametrize(
        ("flags", "reason"),
        [
            ("--config=nowhere.toml", "WINDROW-SETTINGS: nowhere.toml cannot be read"),
            ("--ledgr=ledger", "WINDROW-USAGE: No such option: --ledgr"),
        ],
    )
    def test_mistakes(self, here: Path, job: str, flags: str, reason: str) -> None:
        """
        So it does where it was started wrong, before anything else.
        """
        assert_ends(here, job, flags, 2, reason)

    @pytest.mark.slow
    @pytest.mark.spark
    def test_check_found_something(self, here: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        The check just ends where all holds, and ends with 1 where the books do not balance any more.
        """
        flags = ("--config=windrow.toml", "--ledger=ledger")
        (here / "windrow.toml").write_text('engine = "spark"\n')
        started("check_quality", monkeypatch, *flags)
        DeltaTable(here / "ledger").delete("state = 'open'")
        with pytest.raises(SystemExit) as ended:
            started("check_quality", monkeypatch, *flags)
        assert ended.value.code == 1


def started(job: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Start a script in this process, as a platform does."""
    monkeypatch.setattr(sys, "argv", [job, *arguments])
    runpy.run_path(str(JOBS / f"{job}.py"), run_name="__main__")


def assert_ends(here: Path, job: str, arguments: str, status: int, reason: str) -> None:
    """Start a script in a process of its own, and look how it ends."""
    command = [sys.executable, str(JOBS / f"{job}.py"), *arguments.split()]
    ended = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stderr
    assert reason in ended.stderr


def packages(job: Node, task: Node) -> list[str]:
    """Return what is installed for a task: files, and requirements."""
    if "environment_key" in task:
        [environment] = job["environments"]
        return list(environment["spec"]["dependencies"])
    return [library.get("whl") or library["pypi"]["package"] for library in task["libraries"]]
