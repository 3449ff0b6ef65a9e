<?php

declare(strict_types=1);

namespace Phpmq;

/** What the transport keeps about a reserved message; nobody else needs to look into it. */
final class Reservation
{
    public function __construct(
        public readonly string $id,
        public readonly string $content,
        private readonly int $ttl,
        private readonly float $at,
    ) {
    }

    /** The seconds that remain, at least 1; 0: it never expires. */
    public function remainingTtl(): int
    {
        return $this->ttl === 0 ? 0 : max(1, (int) ceil($this->ttl - Connection::now() + $this->at));
    }
}
