"""Batches for tests of the writer without a broker."""

from phpmq_lite.model import Batch, QueueRow
from tests.support.core_rig import message


def batch_of_new(*seqs: int) -> Batch:
    batch = Batch(0, first_number=seqs[0])
    row = QueueRow(seqs[0], f"queue {seqs[0]}", 0, live_count=len(seqs), live_bytes=len(seqs))
    batch.new_queues, batch.queue_rows = [row], {row.queue_id: row}
    for seq in seqs:
        batch.created.append(message(seq, body=b"b", queue_id=row.queue_id))
        batch.bodies.append(b"b")
    return batch
