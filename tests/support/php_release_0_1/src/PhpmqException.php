<?php

declare(strict_types=1);

namespace Phpmq;

/** Base class of this package's exceptions. */
class PhpmqException extends \RuntimeException
{
}
