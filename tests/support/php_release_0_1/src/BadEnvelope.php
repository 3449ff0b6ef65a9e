<?php

declare(strict_types=1);

namespace Phpmq;

/** The body to publish is not a valid envelope, so no consumer could handle it. */
final class BadEnvelope extends PhpmqException
{
}
