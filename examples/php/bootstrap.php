<?php
/** Loads Composer's packages where they are, else the same interfaces from contracts.php. */

declare(strict_types=1);

foreach ([__DIR__ . '/vendor/autoload.php', __DIR__ . '/../../vendor/autoload.php'] as $autoload) {
    if (is_file($autoload)) {
        require_once $autoload;
    }
}
require_once __DIR__ . '/contracts.php';
require_once __DIR__ . '/PhpmqTransport.php';
