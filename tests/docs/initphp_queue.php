#!/usr/bin/env php
<?php
/** Stands in for InitPHP Queue's bin/queue: work, with the three options that its page documents. */

declare(strict_types=1);

require __DIR__ . '/../autoload.php';

$options = [];
if (($argv[1] ?? '') === 'work') {
    foreach (array_slice($argv, 2) as $argument) {
        [$name, $value] = explode('=', ltrim($argument, '-'), 2) + [1 => ''];
        $options[$name] = $value;
    }
}
$worker = require realpath($options['bootstrap']);
$queue = $options['queue'] ?? 'default';
isset($options['once']) ? $worker->runOnce($queue) : $worker->run($queue);
