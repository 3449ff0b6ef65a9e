<?php

declare(strict_types=1);

namespace Phpmq;

/** A reserved message: its id, its body, its queue and, unless the broker is of an earlier version, its delivery. */
final class Reservation
{
    public readonly ?int $attempt; // of this delivery: 1 + failed ones; a deployment or a restart fails none
    public readonly ?int $deliveries; // this one included
    public readonly ?float $hold; // seconds from its arrival until it returns unsettled; null if there is no limit
    public readonly ?int $priority; // 0 (first) to 255
    public readonly ?string $group;
    public readonly ?float $age; // seconds since it was ready for the first time

    /** @param array<string, mixed> $info what a broker tells with a dispatch (013) */
    public function __construct(
        public readonly string $id,
        public readonly string $content,
        private readonly int $ttl,
        private readonly float $at,
        public readonly int $pid, // of the process that reserved the message
        public readonly string $queue,
        array $info = [],
    ) {
        $number = fn (string $name): int|float|null =>
            is_int($info[$name] ?? null) || is_float($info[$name] ?? null) ? $info[$name] : null;
        $whole = fn (string $name): ?int => is_int($info[$name] ?? null) ? $info[$name] : null;
        [$this->attempt, $this->deliveries, $this->priority] = array_map($whole, ['attempt', 'deliveries', 'priority']);
        [$this->hold, $this->age] = array_map($number, ['hold_s', 'age_s']);
        $this->group = is_string($info['group'] ?? null) ? $info['group'] : null;
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
        return $this->ttl === 0 ? 0 : max(1, (int) ceil($this->ttl - $this->heldFor()));
    }

    /** Returns the seconds since the message arrived in this process. */
    public function heldFor(): float
    {
        return Connection::now() - $this->at;
    }
}
