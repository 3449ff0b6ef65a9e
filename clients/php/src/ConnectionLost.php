<?php

declare(strict_types=1);

namespace Phpmq;

/** No connection, or it ended: what was reserved over it goes back to its queue. Try again. */
final class ConnectionLost extends PhpmqException
{
}
