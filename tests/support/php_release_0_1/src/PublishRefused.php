<?php

declare(strict_types=1);

namespace Phpmq;

/** The broker did not store the message; the exception gives the reason, such as "queue is full". */
final class PublishRefused extends PhpmqException
{
}
