<?php

declare(strict_types=1);

namespace Phpmq;

/** There was no connection yet, and trying again would not help: the address or the certificate is wrong. */
final class NotConnected extends ConnectionLost
{
    /** @param bool $mayStart whether a broker may still be started there, so that a worker waits for it */
    public function __construct(string $message, public readonly bool $mayStart = false)
    {
        parent::__construct($message);
    }
}
