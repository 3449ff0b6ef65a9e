<?php
/** Loads Composer's packages if they are installed, and otherwise this repository's client. */

declare(strict_types=1);

foreach ([__DIR__ . '/vendor/autoload.php', __DIR__ . '/../../vendor/autoload.php'] as $autoload) {
    if (is_file($autoload)) {
        require_once $autoload;
    }
}
if (!class_exists(Phpmq\PhpmqTransport::class)) {
    require_once __DIR__ . '/../../clients/php/autoload.php';
}
