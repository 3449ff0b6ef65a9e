r"""Run a harness that compares brokers, with the drivers of ``peer_driver.py``.

The first argument is the folder of the harness, all others are passed to it::

    python benchmarks/peers.py ../bench --brokers phpmq-lite-plain,rabbitmq-classic \
        --workloads W2,W3 --dir ./peers-data --json peers.json
"""

import sys
from importlib import import_module
from pathlib import Path


def main() -> None:
    """Register our drivers and run the harness."""
    if len(sys.argv) < 2 or not (Path(sys.argv[1]) / "peers.py").is_file():
        raise SystemExit(f"usage: {sys.argv[0]} HARNESS [its arguments]")
    harness = Path(sys.argv[1]).resolve()
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(harness), *(p for p in sys.path if Path(p).resolve() != here), str(here)]
    drivers = import_module("drivers")
    for driver in import_module("peer_driver").DRIVERS:
        drivers.REGISTRY[driver.name] = driver
    sys.argv = [str(harness / "peers.py"), *sys.argv[2:]]
    import_module("peers").main()


if __name__ == "__main__":
    main()
