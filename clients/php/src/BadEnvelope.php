<?php

declare(strict_types=1);

namespace Phpmq;

/** What should be published is no envelope; no consumer could handle it. */
final class BadEnvelope extends PhpmqException
{
}
