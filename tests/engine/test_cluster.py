"""A standalone Spark cluster whose workers, executors and drivers are killed in the middle of a microbatch."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.clocks import NOW
from tests.engine.cluster import Applications, running, send, until
from tests.engine.held import Hold
from tests.messages import SECOND, log
from windrow.verify import verify

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc"),
]

COMMITS = 5


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """A master."""
    with running(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def applications(machines):
    """What runs on the cluster, one test after the other."""
    started = Applications(machines)
    yield started
    started.close()


@pytest.fixture
def cluster(machines):
    """A master and two workers, whatever the test before left."""
    machines.fill(2)
    return machines


@pytest.fixture
def application(cluster, applications, request):
    """An application on the cluster; a test that fails leaves none to the next."""
    failed = request.session.testsfailed
    yield applications
    if request.session.testsfailed > failed:
        applications.close()


@pytest.fixture
def hold(tmp_path):
    """Make a hold for so many tasks."""
    return lambda tasks: Hold.make(tmp_path / "hold", tasks)


@pytest.fixture
def begun(world, embedded):
    """A world with open batches, rejections and 120 messages that are to be read."""
    first, *others = log(versions=3, size=60)
    world.publish(first)
    world.runner(embedded).once()
    world.publish(*others)
    return world


def require_undisturbed(world, reference):
    """Require the ledger of an undisturbed run, and clean books at every version."""
    assert world.canonical() == reference(world).canonical()
    world.assert_balanced()
    assert verify(world.depot, world.ledger, list(range(world.version() + 1))).differences == ()


def require_attempts(world, path, attempts):
    """Require that one microbatch followed the first, on this path, in one of these attempts."""
    [row] = world.history()[1:]
    assert row["processed_on"] == ("executors" if path == "files" else path)
    assert row["attempt"] in attempts


class TestWorker:
    @pytest.mark.parametrize(
        ("path", "phase", "attempts"),
        [("executors", "process", {1}), ("driver", "commit", {1}), ("files", "process", {1})],
    )
    def test_killed(self, begun, cluster, application, hold, reference, path, phase, attempts):
        """A worker that is killed with its executor, while a task there is in the middle of processing or committing,
        leaves the result of an undisturbed run. Spark does the task again; only processed rows that are lost with the
        worker take another attempt.
        """
        place = hold(1)
        application.run(begun, path, hold=(phase, place))
        [worker] = until(place.workers, "a held task")
        cluster.kill_worker(worker)
        assert len(begun.history()) == 1
        application.hear("done")
        require_undisturbed(begun, reference)
        require_attempts(begun, path, attempts)

    def test_all_killed(self, begun, cluster, application, hold, reference):
        """So do all workers, killed while each is in the middle of committing, once there is a new one."""
        place = hold(2)
        application.run(begun, "driver", hold=("commit", place))
        for worker in until(place.workers, "two held tasks"):
            cluster.kill_worker(worker)
        assert len(begun.history()) == 1
        cluster.fill(1)
        application.hear("done")
        require_undisturbed(begun, reference)
        require_attempts(begun, "driver", {1})

    def test_rows_lost(self, begun, cluster, application, reference):
        """Rows that were processed and are lost with their workers before the commit are processed again, in a second
        attempt of the same microbatch.
        """
        application.run(begun, "executors", wait="after_process")
        application.hear("waiting")
        for worker in list(cluster.workers):
            cluster.kill_worker(worker)
        cluster.fill(2)
        application.go_on()
        application.hear("done")
        require_undisturbed(begun, reference)
        require_attempts(begun, "executors", {2})

    def test_writing(self, begun, cluster, application, reference):
        """A worker that is killed when files of the commit are written, and the commit is not, leaves no trace of
        them.
        """
        for rows in log(versions=COMMITS, size=60, seed=2, start=NOW + 12 * SECOND):
            begun.publish(rows)
            if frozen_in_commit(begun, cluster, application):
                break
        else:
            pytest.fail(f"none of {COMMITS} commits was met in the middle")
        cluster.kill_worker(cluster.workers[0])
        send(cluster.all_executors(), signal.SIGCONT)
        application.hear("done")
        require_undisturbed(begun, reference)


def frozen_in_commit(world, cluster, application):
    """Run, stop the executors when the first file of the commit is there; if it came to be, let the run end."""
    application.run(world, "driver", wait="before_commit")
    application.hear("waiting")
    executors = cluster.all_executors()
    before, version = data_files(world), world.version()
    application.go_on()
    until(lambda: data_files(world) - before, "a file of the commit", pause=0)
    send(executors, signal.SIGSTOP)
    if world.version() == version:
        return True
    send(executors, signal.SIGCONT)
    application.hear("done")
    return False


def data_files(world):
    """Return the files of the ledger, those of commits that did not come to be too."""
    return set(Path(world.ledger).rglob("*.parquet"))


class TestFilesOfTasks:
    def test_worker_killed(self, begun, cluster, application, reference):
        """A worker that is killed when one of its tasks has begun to write files of the ledger leaves the result of an
        undisturbed run: Spark does the tasks again.
        """
        before = data_files(begun)
        application.run(begun, "files")
        until(lambda: data_files(begun) - before, "a file of a task", pause=0)
        cluster.kill_worker(cluster.workers[0])
        application.hear("done")
        require_undisturbed(begun, reference)
        require_attempts(begun, "files", {1})

    def test_driver_killed(self, begun, cluster, application, reference):
        """Files of a driver that is killed before it commits them are in no version; another driver reaches the
        result.
        """
        application.run(begun, "files", wait="after_process")
        application.hear("waiting")
        application.close()
        assert len(begun.history()) == 1
        application.run(begun, "files")
        application.hear("done")
        require_undisturbed(begun, reference)
        require_attempts(begun, "files", {1})


class TestExecutor:
    def test_killed(self, begun, cluster, application, hold, reference):
        """An executor that is killed alone, in the middle of committing, is replaced by its worker, and leaves the
        result of an undisturbed run.
        """
        place = hold(1)
        application.run(begun, "executors", hold=("commit", place))
        [worker] = until(place.workers, "a held task")
        [killed] = cluster.executors(worker)
        cluster.kill_executor(worker)
        until(lambda: cluster.executors(worker) not in ([], [killed]), "another executor")
        application.hear("done")
        require_undisturbed(begun, reference)
        require_attempts(begun, "executors", {1, 2})


class TestDriver:
    def test_killed(self, begun, cluster, application, hold, reference):
        """A driver that is killed while a task of it commits leaves a ledger from which another driver on the same
        cluster reaches the result of an undisturbed run.
        """
        place = hold(1)
        application.run(begun, "driver", hold=("commit", place))
        until(place.workers, "a held task")
        application.close()
        assert len(begun.history()) == 1
        application.run(begun, "driver")
        application.hear("done")
        require_undisturbed(begun, reference)
        require_attempts(begun, "driver", {1})
