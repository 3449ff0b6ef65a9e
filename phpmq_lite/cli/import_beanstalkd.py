"""``import-beanstalkd``: publishes the jobs of a live beanstalkd."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import click

from phpmq_lite.cli.connect import GiveClient, client_options
from phpmq_lite.cli.importing import Item, Tally, journal_option, opened, publish
from phpmq_lite.cli.main import NOT_FOUND, CommandError
from phpmq_lite.cli.options import talk
from phpmq_lite.cli.output import Column, counting, output_option, write
from phpmq_lite.client.address import BrokerAddress, parse_address
from phpmq_lite.client.blocking_client import BlockingClient
from phpmq_lite.envelopes.outbox import wall_ms
from phpmq_lite.moving import beanstalkd
from phpmq_lite.moving.beanstalkd import Beanstalkd, Job

_AT_ONCE: Final = 500
_AT_ONCE_BYTES: Final = 32 << 20  # what a batch may need, were all jobs as large as they may be
_FEWEST: Final = 16
_HEADS: Final = (Column("tube", "TUBE"), Column("state", "STATE"), Column("target", "TO"))


def address(value: str) -> BrokerAddress:
    """Give where a beanstalkd is; a click type."""
    try:
        target = parse_address(value, default=beanstalkd.DEFAULT_PORT)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if target.path:
        raise click.BadParameter(f"{value!r} is no HOST:PORT")
    return target


def mapping(value: str) -> tuple[str, str]:
    """Give both names of ``mails=mail.out``; a click type."""
    tube, sign, queue = value.partition("=")
    if not sign or not tube or not queue:
        raise click.BadParameter(f"{value!r} is no TUBE=QUEUE")
    return tube, queue


@click.command("import-beanstalkd")
@click.argument("source", type=address, metavar="HOST[:PORT]")
@click.option(
    "--tube", "tubes", multiple=True, metavar="NAME",
    help="Only this tube. Repeatable.  [default: all]",
)  # fmt: skip
@click.option(
    "--map", "names", type=mapping, multiple=True, metavar="TUBE=QUEUE",
    help="Jobs of TUBE to QUEUE, where it is to be called otherwise. Repeatable.",
)  # fmt: skip
@click.option("--move", is_flag=True, help="Delete there what is stored here.")
@journal_option
@click.option("--dry-run", is_flag=True, help="Show what would be published; publish nothing.")
@output_option
@client_options
def import_beanstalkd(
    client: GiveClient,
    source: BrokerAddress,
    tubes: tuple[str, ...],
    names: tuple[tuple[str, str], ...],
    move: bool,
    journal_path: Path | None,
    dry_run: bool,
    output: str | None,
) -> None:
    """Publish the jobs of a running beanstalkd: a copy, or with --move a move.

    Ready jobs go to the queue of the tube's name, the most urgent first, then the oldest; delayed
    ones to QUEUE.retry with the rest of their delay, buried ones to QUEUE.dlq. What a worker has
    reserved is left out. With --move each is deleted there once it is stored here; workers may go
    on there meanwhile. A second run within the broker's window of keys stores nothing twice, but a
    job that was delayed then and is ready now; with --journal that neither.
    """
    with beanstalkd.connect(source) as server, opened(journal_path) as journal:
        missing = sorted({*tubes, *(tube for tube, _ in names)} - {*server.tubes()})
        if missing:
            raise CommandError(f"beanstalkd has no tube {missing[0]!r}", NOT_FOUND)
        run = _Run(server, dict(names), Tally(_HEADS, journal), is_move=move)
        try:
            if dry_run:
                run.preview(tubes)
            else:
                run.publish(client(), tubes)
        finally:
            if run.tally.rows():
                write(run.tally.rows(), run.tally.columns, output, "")
        if not dry_run:
            run.tell()
    run.tally.end(is_dry=dry_run)


@dataclass(slots=True)
class _Run:
    """One run: from where to which queues, and how far it is."""

    server: Beanstalkd
    names: Mapping[str, str]
    tally: Tally
    is_move: bool
    gone: int = 0  # between the look round and the reading
    deleted: int = 0
    taken: int = 0  # stored here, and reserved by a worker there before they could be deleted

    def preview(self, tubes: Sequence[str]) -> None:
        """Count what would be published, without reading a body."""
        for lot, job_ids in beanstalkd.survey(self.server, tubes).items():
            for job_id in job_ids:
                self.tally.count(self._item(Job(job_id, lot.tube, lot.state, 0, 0)))

    def publish(self, client: BlockingClient, tubes: Sequence[str]) -> None:
        """Publish all, piece by piece; what is stored is deleted there before the next piece."""
        is_held = self.is_move and self.server.can_reserve
        if self.is_move and not is_held:
            talk("this beanstalkd cannot reserve a job by its id: its workers should be stopped")
        lots = beanstalkd.survey(self.server, tubes)
        wanted = ((lot, job_id) for lot, job_ids in lots.items() for job_id in job_ids)
        total = sum(map(len, lots.values()))
        at_once = max(_FEWEST, min(_AT_ONCE, _AT_ONCE_BYTES // self.server.max_job_bytes))
        with client, counting("import", total) as advance:
            while piece := list(islice(wanted, at_once)):
                found = self.server.take(piece, is_held=is_held)
                jobs = [job for job in found if job is not None]
                self.gone += len(found) - len(jobs)
                is_stored = publish(client, [self._item(job) for job in jobs], self.tally)
                if self.is_move:
                    self._delete([job for job, done in zip(jobs, is_stored, strict=True) if done])
                advance(len(piece))

    def _delete(self, jobs: Sequence[Job]) -> None:
        deleted = self.server.delete([job.job_id for job in jobs])
        self.deleted += deleted
        self.taken += len(jobs) - deleted

    def _item(self, job: Job) -> Item:
        queue = self.names.get(job.tube, job.tube)
        instance = self.server.instance
        message = beanstalkd.plan(job, queue, instance=instance, now_ms=wall_ms())
        group = (job.tube, job.state, queue if message is None else message.queue)
        return Item(group, f"job {job.job_id} of tube {job.tube}", message)

    def tell(self) -> None:
        """Say what became of the jobs there."""
        if self.gone:
            talk(f"{self.gone:,} were gone before they were read: a worker was done with them")
        if not self.is_move:
            talk("beanstalkd has all its jobs still: --move deletes there what is stored here")
            return
        if self.taken:
            talk(f"{self.taken:,} were taken by a worker there too: they may be handled twice")
        talk(f"{self.deleted:,} deleted in beanstalkd, which has {self.server.jobs():,} left")
