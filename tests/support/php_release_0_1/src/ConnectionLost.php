<?php

declare(strict_types=1);

namespace Phpmq;

/** There is no connection, or it was lost. Reserved messages return to their queues. Call again to reconnect. */
class ConnectionLost extends PhpmqException
{
}
