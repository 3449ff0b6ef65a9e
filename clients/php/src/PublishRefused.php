<?php

declare(strict_types=1);

namespace Phpmq;

/** The broker stored nothing and said why, as "queue is full". */
final class PublishRefused extends PhpmqException
{
}
