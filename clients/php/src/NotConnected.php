<?php

declare(strict_types=1);

namespace Phpmq;

/** There was no connection yet, and trying again would not help: the address or the certificate is wrong. */
final class NotConnected extends ConnectionLost
{
}
