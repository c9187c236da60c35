"""Run SQL in Flink: a process of its own, whose packages other peers cannot have.

The argument is the configuration, in JSON. Each line of the input is a list of statements of which the last is a job,
and whether to wait for its end; the answer is the job's id. The end of the input cancels what runs.
"""

import json
import sys

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment


def main() -> None:
    """Answer line by line."""
    configuration = Configuration()
    for name, value in json.loads(sys.argv[1]).items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    environment, job = TableEnvironment.create(settings), None
    for line in sys.stdin:
        (*tables, insert), wait = json.loads(line)
        for statement in tables:
            environment.execute_sql(statement)
        started = environment.execute_sql(insert)
        job = started.get_job_client()
        number = job.get_job_id()
        if wait:
            started.wait()
            job = None
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
    if job is not None:
        job.cancel().result()


if __name__ == "__main__":
    main()
