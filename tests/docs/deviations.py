"""Lines of the pages that are not run as written, and why.  A test checks the tables."""

from typing import Final

INSTALLS: Final = "installs packages; tests/integration/test_packaging.py installs ours"
RUNS: Final = "the broker of the test is running"
MACHINE: Final = "changes the machine; tests/docs/test_service_unit.py compares paths and names"
PROXIES: Final = "needs the proxy; tests/integration/test_behind_proxies.py starts it"
SERVED: Final = "runs until it is stopped; tests/docs/test_web_applications.py sends it requests"
HOW_DO_I: Final = "needs a broker of its own; tests/docs/test_how_do_i.py runs it"
CRON: Final = "needs cron; tests/docs/test_how_do_i.py runs its command as cron does"
DOCKER: Final = "needs docker; tests/docs/test_container.py runs the command of the image"
SYSTEMD: Final = "needs systemd; the test stops and starts its broker instead"
LONG: Final = "takes minutes; tests/docs/test_performance_page.py parses its options"
SPARK: Final = "starts Spark; tests/spark/test_pages.py runs it in the session of its tests"
FIRST_STEPS: Final = "starts Spark; tests/spark/test_first_steps.py runs it"
SERVERS: Final = "needs three machines; tests/integration/test_patroni.py starts a cluster here"
SHOP: Final = "needs PostgreSQL; tests/docs/test_three_machines.py runs the whole page"
DBT: Final = "needs dbt; tests/docs/test_dbt_example.py installs and runs it"
CONNECT: Final = "needs a Spark Connect server; tests/spark/test_connect.py starts one"
CLUSTER: Final = "needs other machines; tests/spark/test_cluster.py runs a cluster on this one"

VIEW: Final = "needs PostgreSQL; tests/integration/test_postgres_view.py runs it there"
POSTGRES: Final = (
    "needs PostgreSQL servers; tests/integration/test_store_copy.py copies there and back"
)
OLD_BROKER: Final = "needs a broker of an unreleased version"

# By page, a part of a line (of code: of the block) that is not run -> the reason.
NOT_RUN: Final[dict[str, dict[str, str]]] = {
    "docs/guides/how-do-i.md": {
        "* * *": CRON,
        "@reboot": CRON,
        "sudo ": MACHINE,
        "serve ": HOW_DO_I,
        "check ready": HOW_DO_I,
        "kill ": HOW_DO_I,
        "rm -rf phpmq-data": "would remove the data of the test's broker",
        "docker ": DOCKER,
    },
    "docs/guides/web-applications.md": {"gunicorn ": SERVED, "uvicorn ": SERVED},
    "CONTRIBUTING.md": {"-m pytest": "runs this test"},
    "README.md": {
        ".venv/bin/phpmq-lite serve": INSTALLS,
        ".venv/bin/activate": INSTALLS,
        "phpmq-lite bench": "takes 20 s; tests/integration/test_bench.py",
        ".venv/bin/pip install '.[spark,java]'": INSTALLS,
        "phpmq-lite pipeline run": FIRST_STEPS,
        "python chart.py": FIRST_STEPS,
        "-m pytest": "runs this test",
    },
    "benchmarks/README.md": {"peers.py": "needs the other brokers, and an hour"},
    "benchmarks/profile.md": {"profile_paths.py": "needs root and minutes"},
    "docs/operate/container.md": {"sudo ": MACHINE, "openssl rand": DOCKER, "docker ": DOCKER},
    "docs/operate/proxy.md": {
        "user create": "would require a login of the pages after this one",
        "location /mq/": PROXIES,
        "handle /mq/": PROXIES,
        "frontend web": PROXIES,
    },
    "docs/operate/another-machine.md": {
        "serve --config": "runs until it is stopped; tests/docs/extras.py starts it with this file",
        "scp ": "copies to another machine; the test has only this one",
    },
    "docs/operate/operations.md": {
        "sudo ": MACHINE,
        "systemctl": SYSTEMD,
        "'state:ready state:dispatched'": OLD_BROKER,
        "/definitions": OLD_BROKER,
        "import messages.jsonl": OLD_BROKER,
    },
    "docs/operate/cluster.md": {
        "patronictl ": SERVERS,
        "etcdctl ": SERVERS,
        "sudo ": SERVERS,
        "export PGPASSFILE": SERVERS,
        "url='": SERVERS,
        "pg_dump ": SERVERS,
        "pg_restore ": SERVERS,
    },
    "docs/start/three-machines.md": {"": SHOP},
    "docs/operate/managed-postgresql.md": {"CREATE ROLE": SERVERS, "SHOW sync": SERVERS},
    "deploy/cluster/README.md": {
        "sudo ": SERVERS,
        "certificates ca": SERVERS,
        "scp ": SERVERS,
        "~/secrets.env": SERVERS,
        "patronictl list": SERVERS,
    },
    "docs/operate/moving.md": {"createdb": POSTGRES, "systemctl": POSTGRES, "sudo ": POSTGRES},
    "docs/guides/migrate.md": {"redis-cli": "needs Redis; publish --lines reads its output"},
    "docs/operate/performance.md": {"phpmq-lite bench": LONG, "pip install": INSTALLS},
    "docs/guides/php.md": {
        "composer require": "downloads packages; the test has stand-ins for both",
        "sudo ": "changes the machine; tests/integration/test_php_package.py runs the command",
    },
    "docs/guides/pipeline.md": {
        "pip install": INSTALLS,
        "sudo ": "changes the machine; tests/docs/test_service_unit.py checks the units",
        "--continuous": "runs until stopped; tests/spark/test_cluster.py starts and stops it",
        "--url http://mq:9101": CLUSTER,
        "phpmq-lite pipeline run": SPARK,
        "phpmq-lite pipeline replay": SPARK,
        "duckdb -c": "needs the program duckdb; docs/guides/read-history.md does this in Python",
        "metrics/minutes": "needs metrics, which take seconds; tests/spark/test_jobs_archive.py",
        "phpmq-lite pipeline files": SPARK,
        "phpmq-lite check pipeline": SPARK,
        "DeltaTable(": SPARK,
        "from phpmq_lite.spark": SPARK,
        "start-connect-server": CONNECT,
        ".remote(": CONNECT,
        "SPARK=": CLUSTER,
        "$SPARK/bin/spark-class": CLUSTER,
    },
    "docs/guides/postgresql-view.md": {
        "GRANT ": VIEW,
        "CREATE ROLE": VIEW,
        "settled_message": VIEW,
    },
    "docs/guides/read-history.md": {
        "pip install": INSTALLS,
        "phpmq-lite pipeline archive": SPARK,
        "parquet(files": SPARK,
    },
    "docs/guides/tables.md": {
        "pip install": INSTALLS,
        "phpmq-lite pipeline": SPARK,
        "python -c": SPARK,
        "from phpmq_lite.spark": SPARK,
        "SELECT date": SPARK,
    },
    "docs/guides/schemas.md": {"phpmq-lite serve": RUNS},
    "docs/start/tutorial.md": {
        ".venv/bin/pip install": INSTALLS,
        ".venv/bin/activate": INSTALLS,
        ".venv/bin/phpmq-lite serve": RUNS,
        "phpmq-lite pipeline run": FIRST_STEPS,
        "from phpmq_lite.spark": SPARK,
    },
    "examples/dbt/README.md": {"pip install": INSTALLS, "dbt ": DBT},
    "examples/php/README.md": {
        "phpmq-lite serve &": RUNS,
        "composer install": "downloads packages; tests/integration/test_php_package.py runs it",
    },
}

# By page, the written text -> the text that is run instead.
INSTEAD: Final[dict[str, dict[str, str]]] = {
    "docs/guides/admin.md": {
        "--role admin": "--role admin --password-file - <<< 'typed by nobody'"
    },
    "docs/operate/another-machine.md": {
        "mq.example": "localhost",
        "--role admin": "--role admin --password-file - <<< 'typed by nobody'",
    },
    "docs/operate/operations.md": {
        "/mnt/elsewhere": "elsewhere",
        "20261231T235959Z    #": "$(ls phpmq-data/backups | head -1) --yes #",
        "20261231T235959Z": "$(ls phpmq-data/backups | head -1)",
    },
    "docs/guides/migrate.md": {"127.0.0.1:11300": "$(cat beanstalkd.address)"},
    "docs/guides/php.md": {
        "5.0": "0.5",
        "--stop-when-empty": "--stop-when-empty --timeout=1",
        "vendor/bin/queue work --bootstrap=worker.php --queue=emails": (
            "PHPMQ_ADDRESS=$PHPMQ_TCP__LISTEN"
            " vendor/bin/queue work --bootstrap=worker.php --queue=starters"
        ),
    },
    "docs/guides/pipeline.md": {
        # its other two jobs take seconds, and test_first_steps.py runs all three
        "pipeline run --bodies": "pipeline archive --bodies --format delta",
        "files --date 2026-01-31": "files",
        "--name NAME": "--name $(ls phpmq-data/pipeline/replays | head -1 | cut -d. -f1)",
    },
    "docs/guides/workers.md": {
        "outbox relay --database shop.sqlite": "outbox relay --database shop.sqlite --once",
        "--app handlers:app": "--app handlers:app --stop-when-empty",
    },
    "examples/README.md": {
        "python plain_worker.py": "timeout --preserve-status 2 python plain_worker.py",
        "handlers:app": "handlers:app --stop-when-empty",
    },
    "examples/php/README.md": {"--stop-when-empty": "--stop-when-empty --timeout=1"},
}
