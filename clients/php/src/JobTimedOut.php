<?php

declare(strict_types=1);

namespace Phpmq;

/** A job has run for its time limit, and is ended by this exception; see JobTimer. */
final class JobTimedOut extends \RuntimeException
{
}
