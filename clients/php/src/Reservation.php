<?php

declare(strict_types=1);

namespace Phpmq;

/** The transport's own data about a reserved message. */
final class Reservation
{
    public function __construct(
        public readonly string $id,
        public readonly string $content,
        private readonly int $ttl,
        private readonly float $at,
        public readonly int $pid, // of the process that reserved the message
    ) {
    }

    /** Returns the remaining time to live in seconds, at least 1; 0 means no expiry. */
    public function remainingTtl(): int
    {
        return $this->ttl === 0 ? 0 : max(1, (int) ceil($this->ttl - Connection::now() + $this->at));
    }
}
