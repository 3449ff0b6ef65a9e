<?php

declare(strict_types=1);

namespace Phpmq;

/** All that goes wrong here is one of these. */
class PhpmqException extends \RuntimeException
{
}
