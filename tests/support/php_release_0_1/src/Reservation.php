<?php

declare(strict_types=1);

namespace Phpmq;

/** A reserved message: its id, its body and its queue. */
final class Reservation
{
    public function __construct(
        public readonly string $id,
        public readonly string $content,
        private readonly int $ttl,
        private readonly float $at,
        public readonly int $pid, // of the process that reserved the message
        public readonly string $queue,
    ) {
    }

    /** Throws a PhpmqException in a fork of the process that reserved the message. */
    public function requireOwn(): void
    {
        if ($this->pid !== getmypid()) {
            throw new PhpmqException(
                "process $this->pid reserved the message and must settle it; process " . getmypid() . ' is its fork'
            );
        }
    }

    /** Returns the remaining time to live in seconds, at least 1; 0 means no expiry. */
    public function remainingTtl(): int
    {
        return $this->ttl === 0 ? 0 : max(1, (int) ceil($this->ttl - Connection::now() + $this->at));
    }
}
