import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.clocks import ManualClock
from tests.engine.factory import EMBEDDED, EngineFactory
from windrow.cli import main

settings.register_profile(
    "dev", max_examples=20, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True)  # what is red is red again
settings.register_profile("fast", settings.get_profile("dev"), max_examples=5)
settings.register_profile("all", settings.get_profile("dev"), max_examples=300)
settings.register_profile(
    "mutants",
    settings.get_profile("dev"),
    max_examples=20,
    derandomize=True,  # the same mutants survive in every run
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],  # tests run twice in one process
)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def one_in(number: int, least: int = 3) -> settings:
    """Take one example where others take so many: it is slow, or follows from what another test shows with all."""
    most = settings.default.max_examples
    return settings(max_examples=max(min(least, most), most // number))


# Spark compiles whole stages otherwise, which takes longer than the query of a test. Commits do without anyway.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false"}
FAST_JAVA = ("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


EXECUTORS = {"max_driver_messages": 0}
KINDS: dict[str, dict[str, Any]] = {
    "spark": {},
    "spark-executors": EXECUTORS,
    "spark-files": {"commit": "files"},
    "spark-files-executors": EXECUTORS | {"commit": "files"},
}
ONE_JVM = "spark"
RUNNING = "sc://"  # how the address of a running server begins
LIBRARY = Path(__file__).parents[1] / "lib" / "windrow"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that needs a Spark session, so that `-m "not spark"` runs without Java."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        named = any("spark" in str(parameters.get(name)) for name in ("engine", "drivers", "session"))
        if named or "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group(ONE_JVM))
            on_executors = str(parameters.get("engine")).endswith("executors") and item.get_closest_marker(
                "slow_on_executors"
            )
            if on_executors or item.get_closest_marker("slow_on_spark"):
                item.add_marker(pytest.mark.slow)
        unless = item.get_closest_marker("slow_unless")
        if unless and not any(exempt.items() <= parameters.items() for exempt in unless.args):
            item.add_marker(pytest.mark.slow)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile before the processes of xdist begin, if nothing is compiled yet: each would, which takes minutes.

    A shell ignores Ctrl-C in what it runs in the background, and so would the programs that tests start and interrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    begins = session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput")
    if begins and "NUMBA_CACHE_DIR" not in os.environ and not any(LIBRARY.rglob("__pycache__/*.nbi")):
        command = [sys.executable, "-m", "tests.warm"]
        for part in [subprocess.Popen([*command, part], cwd=LIBRARY.parents[1]) for part in ("batching", "formats")]:
            part.wait()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadgroup` one process runs all tests with Spark, because a JVM begins slowly; others take files."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class OneJvm(LoadScopeScheduling):  # type: ignore[misc]
        """Hands out the tests with Spark as one piece, and of the others the files."""

        def _split_scope(self, nodeid: str) -> str:
            return ONE_JVM if nodeid.endswith(f"@{ONE_JVM}") else nodeid.split("::", 1)[0]

    return OneJvm(config, log)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session of a process; its JVM compiles fast, because no test runs long enough for fast code.

    With TEST_SPARK_REMOTE it is a Spark Connect session of that server, such as local[2], or sc://... for one that runs
    and takes no settings; with TEST_SPARK_MASTER one of that cluster, such as local-cluster[2,1,1024].
    """
    home = os.environ.get("JAVA_HOME")
    if not (shutil.which("java") or (home and shutil.which("java", path=f"{home}/bin"))):
        pytest.fail("Spark tests need Java 17 on the path; run the others with: pytest -m 'not slow and not spark'")
    from windrow.engine.spark.session import local_session

    os.environ.setdefault(*FAST_JAVA)
    remote = os.environ.get("TEST_SPARK_REMOTE")
    master = os.environ.get("TEST_SPARK_MASTER", "local[2]")
    session = connected(remote) if remote else local_session("windrow-tests", master=master)
    if not (remote or "").startswith(RUNNING):
        for name, value in INTERPRETED.items():
            session.conf.set(name, value)
    yield session
    session.stop()


def connected(remote: str) -> Any:
    """Start a Connect session as a platform would give it: with Delta, and otherwise as it comes."""
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    from windrow.engine.spark.session import SETTINGS

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_TESTING", "1")  # a port that is free, where there is one fixed for everybody
    if remote.startswith(RUNNING):
        return SparkSession.builder.remote(remote).getOrCreate()
    builder = configure_spark_with_delta_pip(SparkSession.builder.remote(remote))
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():  # that the running server does not take what it was started with
        warnings.simplefilter("ignore", UserWarning)
        return builder.getOrCreate()


@pytest.fixture
def embedded() -> EngineFactory:
    """The embedded engine."""
    return EngineFactory("embedded")


@pytest.fixture(params=["embedded", "spark"])
def engine(request: pytest.FixtureRequest) -> EngineFactory:
    """Each engine in turn."""
    return factory_of(request.param, request)


def factory_of(kind: str, request: pytest.FixtureRequest) -> EngineFactory:
    """Return the factory of `embedded`, or of Spark: its driver or its executors, which commit by MERGE or by files."""
    if kind == "embedded":
        return EMBEDDED
    if "TEST_SPARK_REMOTE" in os.environ and "commit" in KINDS[kind]:
        pytest.skip("needs Spark in this process")
    return EngineFactory("spark", request.getfixturevalue("spark"), KINDS[kind])


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test moves."""
    return ManualClock()


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory `demo` with depot, ledger and settings that `windrow demo` makes, on the embedded engine."""
    directory = tmp_path_factory.mktemp("sample") / "demo"
    with redirect_stdout(StringIO()):
        assert main(["demo", "--engine", "embedded", "--into", str(directory), "--json"]) == 0
    return directory
