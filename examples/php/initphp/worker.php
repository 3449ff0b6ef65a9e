<?php
/**
 * Worker of an InitPHP Queue application: connects handlers to PHPMQ and returns the Worker.
 *
 *     vendor/bin/queue work --bootstrap=worker.php --queue=emails
 *
 * Copy this file next to your composer.json. PHPMQ_ADDRESS sets the broker (default 127.0.0.1:9100).
 * deploy/phpmq-worker@.service runs the file under systemd: phpmq-worker@emails.
 */

declare(strict_types=1);

require_once __DIR__ . '/vendor/autoload.php';

use BabelQueue\Contracts\InboundMessage;
use InitPHP\Queue\Consumer\Dispatcher;
use InitPHP\Queue\Consumer\Worker;
use InitPHP\Queue\Consumer\WorkerOptions;
use InitPHP\Queue\Routing\HandlerMap;
use Phpmq\JobTimer;
use Phpmq\PhpmqTransport;

$transport = new PhpmqTransport(getenv('PHPMQ_ADDRESS') ?: '127.0.0.1:9100');
$timer = new JobTimer($transport);
$handlers = (new HandlerMap())->register(
    'urn:babel:users:registered',
    $timer->limited(function (InboundMessage $message): void { // returning acknowledges; an exception retries
        echo 'welcome, user ', $message->getData()['user_id'], "\n";
    }, 3600), // seconds, then the job is ended and retried
);

return new Worker(
    $transport,
    new Dispatcher($handlers),
    new WorkerOptions(
        maxAttempts: 3,
        backoff: [1, 5, 15], // in seconds; until then, the message is scheduled
        sleepWhenEmpty: 0.0, // reserve() already waits
        maxJobs: 1000, // then the worker exits, and systemd starts a new one
        memoryLimitMb: 128,
    ),
    function (string $level, string $event, array $context): void {
        fwrite(STDERR, json_encode(['level' => $level, 'event' => $event] + $context) . "\n");
    },
);
