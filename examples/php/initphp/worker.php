<?php
/**
 * The worker of an application on InitPHP Queue: wires handlers to PHPMQ and returns the Worker.
 *
 *     vendor/bin/queue work --bootstrap=worker.php --queue=emails
 *
 * Copy it beside your composer.json. PHPMQ_ADDRESS names the broker, 127.0.0.1:9100 by default.
 * deploy/phpmq-worker@.service runs it under systemd: phpmq-worker@emails.
 */

declare(strict_types=1);

require_once __DIR__ . '/vendor/autoload.php';

use BabelQueue\Contracts\InboundMessage;
use InitPHP\Queue\Consumer\Dispatcher;
use InitPHP\Queue\Consumer\Worker;
use InitPHP\Queue\Consumer\WorkerOptions;
use InitPHP\Queue\Routing\HandlerMap;
use Phpmq\PhpmqTransport;

$handlers = (new HandlerMap())->register(
    'urn:babel:users:registered',
    function (InboundMessage $message): void { // who returns has done it, who throws wants another try
        echo 'welcome, user ', $message->getData()['user_id'], "\n";
    },
);

return new Worker(
    new PhpmqTransport(getenv('PHPMQ_ADDRESS') ?: '127.0.0.1:9100'),
    new Dispatcher($handlers),
    new WorkerOptions(
        maxAttempts: 3,
        backoff: [1, 5, 15], // seconds; the broker keeps the message in <queue>.retry meanwhile
        sleepWhenEmpty: 0.0, // reserve() waits by itself
        maxJobs: 1000, // then it ends, and systemd starts a fresh one
        memoryLimitMb: 128,
    ),
    function (string $level, string $event, array $context): void {
        fwrite(STDERR, json_encode(['level' => $level, 'event' => $event] + $context) . "\n");
    },
);
