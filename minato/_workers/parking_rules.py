"""When a slow sample is put aside, and when it is gone on with. Pure: what a worker sees comes in, an answer goes out.

Where samples or batches may overtake, a slow sample waits only while too many workers are held up by such samples, and
there are others of its epoch to be made. It does not wait any more

    when there is room                            fewer workers are at slow samples
    when it has fallen behind                     by half of `max_deferral`: the other half is for making it
    when its epoch has no more tickets to post    the long ones are begun first, so that all workers end together
    when there is nothing else to do

In order, whatever is wanted first is made first: a sample is put aside only for one that belongs to an earlier batch
(it was begun before its turn, or the other is to be made once more), and gone on with as soon as there is room or none.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_FAST = 1  # workers that are not to be held up by slow samples


@dataclass(frozen=True, slots=True)
class ParkingRule:
    """What holds for a whole loader."""

    in_order: bool
    max_deferral: int
    """Batches."""

    @property
    def patience(self) -> int:
        """Batches that may be posted after a sample's own before it is not kept waiting any longer."""
        return max(1, self.max_deferral // 2)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a worker sees on the board, at a glance."""

    slow_holders: int
    """Workers that are at a slow sample."""
    workers: int
    """Workers that are meant to run."""
    open_batch: int | None
    """The batch of the ticket that would be taken next; None: there is none."""
    open_epoch: int
    """The epoch of that batch."""
    newest: int
    """The batch posted last."""
    posted_before: int
    """Epochs before this one have no more tickets to post."""


def may_park(rule: ParkingRule, batch: int, epoch: int, outlook: Outlook) -> bool:
    """Whether the slow sample in this worker's hand, of that batch and epoch, may be put aside."""
    return not _is_due(rule, batch, epoch, outlook) and outlook.slow_holders > outlook.workers - LEAST_FAST


def should_resume(rule: ParkingRule, batch: int, epoch: int, outlook: Outlook) -> bool:
    """Whether a sample that was put aside is to be gone on with, by a worker that has nothing in hand."""
    return _is_due(rule, batch, epoch, outlook) or outlook.slow_holders < outlook.workers - LEAST_FAST


def _is_due(rule: ParkingRule, batch: int, epoch: int, outlook: Outlook) -> bool:
    """Whether a sample comes before all that could be taken in its place."""
    if outlook.open_batch is None or outlook.open_epoch > epoch:
        return True
    if rule.in_order:
        return outlook.open_batch >= batch
    return epoch < outlook.posted_before or outlook.newest - batch >= rule.patience
