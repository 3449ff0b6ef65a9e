<?php

declare(strict_types=1);

namespace Phpmq;

/** When a signal handler asked a transport to stop; its calls then wait half a second for the broker. */
final class Interrupt
{
    private const WAIT_S = 0.5;

    private float $at = INF; // on the clock of Connection::now()

    public function set(): void
    {
        $this->at = min($this->at, Connection::now());
    }

    public function clear(): void
    {
        $this->at = INF;
    }

    public function isSet(): bool
    {
        return $this->at !== INF;
    }

    /** Returns when a call that began at the given time must end; never, without an interrupt. */
    public function limit(float $began): float
    {
        return max($began, $this->at) + self::WAIT_S;
    }
}
