"""Many long runs of a state machine, of which each one ends at 200 steps at the latest.

- SQLite: ``python -m tests.soak.long_runs --runs 2000``
- PostgreSQL: ``PHPMQ_TEST_STORE=postgres python -m tests.soak.long_runs --runs 300``
- with SIGKILL of the process that stores a batch, on either engine: ``--machine killed --runs 100``
- claims of subscriptions: ``--machine claims``

It prints the number of runs without a divergence.  A divergence ends it with 1;
Hypothesis then shows the smallest run that it has found.  ``--seed`` repeats a search.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any, Final

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.properties.test_broker_machine import BrokerAgainstModel, BrokerWithKilledProcess
from tests.properties.test_claims_machine import ClaimsAgainstModel

MACHINES: Final[dict[str, type[Any]]] = {
    "broker": BrokerAgainstModel,
    "killed": BrokerWithKilledProcess,
    "claims": ClaimsAgainstModel,
}
AT_ONCE: Final = 50  # runs of one search


def search(
    machine: type[RuleBasedStateMachine], runs: int, steps: int, first: int
) -> Iterator[int]:
    """Search in parts, each with the next seed; yield the number of runs after each.

    What a kill leaves depends on time, so that a run with kills cannot be changed to make another.
    """
    at_once = 1 if machine is BrokerWithKilledProcess else AT_ONCE
    for done in range(0, runs, at_once):
        count = min(at_once, runs - done)
        part = settings(
            max_examples=1 + count,  # the first one is the simplest, which does little
            stateful_step_count=steps,
            database=None,
            deadline=None,
            print_blob=True,
            suppress_health_check=[*HealthCheck],
        )
        run_state_machine_as_test(seed(first + done)(machine), settings=part)
        yield done + count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--machine", choices=[*MACHINES], default="broker")
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    machine = MACHINES[arguments.machine]
    began_s = time.monotonic()
    for done in search(machine, arguments.runs, arguments.steps, arguments.seed):
        print(
            f"{done} runs of at most {arguments.steps} steps, {time.monotonic() - began_s:.0f} s:"
            " no divergence",
            flush=True,
        )


if __name__ == "__main__":
    main()
