<?php
/** Does on a PhpmqTransport what a test says: a line of JSON in, a line of JSON out. */

declare(strict_types=1);

require $argv[1] . '/autoload.php';

use Phpmq\Envelope;
use Phpmq\PhpmqTransport;

set_error_handler(function (int $level, string $message, string $file, int $line): bool {
    if (error_reporting() & $level) { // not what an @ expects
        throw new ErrorException($message, 0, $level, $file, $line);
    }
    return false;
});

$transport = new PhpmqTransport(...json_decode($argv[2], true));
$client = function () use ($argv): Phpmq\Client {
    static $made = null;
    return $made ??= new Phpmq\Client(...array_diff_key(json_decode($argv[2], true), ['defaultQueue' => 0]));
};
$messages = new ArrayObject(); // by handle
enum Suit: string
{
    case Hearts = 'H';
}
$odd = function (string $kind): mixed {
    $loop = [];
    $loop['again'] = &$loop;
    return match ($kind) {
        'Closure' => fn (): int => 5,
        'DateTime' => new DateTime('2026-01-01'),
        'ArrayObject' => new ArrayObject(['a' => 1]),
        'Suit' => Suit::Hearts,
        'Phpmq\BadEnvelope' => new Phpmq\BadEnvelope('x'),
        'resource (stream)' => STDIN,
        'INF' => INF,
        'NAN' => NAN,
        'not UTF-8' => "\xff",
        'name that is not UTF-8' => ["\xff" => 1],
        'deeper' => $loop,
        'stdClass' => (object) ['n' => 1.0, 'b' => true, 'z' => null, 's' => 'é', 'o' => new stdClass()],
    };
};
$calls = [
    'publish' => fn (string $body, ?string $queue, int|float $ttl = 0, int|float $delay = 0) =>
        $transport->publish(base64_decode($body), $queue, ttl: $ttl, delay: $delay),
    'publishWith' => function (string $body, string $queue, array $named) use ($client, $transport): mixed {
        if (isset($named['deliverAt'])) {
            $named['deliverAt'] = new DateTimeImmutable($named['deliverAt']);
        }
        $to = isset($named['isEnvelope']) ? $transport : $client();
        return $to->publish(base64_decode($body), $queue, ...array_diff_key($named, ['isEnvelope' => 0]));
    },
    'admin' => function (string $url, ?string $token, string $call, string $queue, string $key, array $time): bool {
        if (isset($time['deliverAt'])) {
            $time['deliverAt'] = new DateTimeImmutable($time['deliverAt']);
        }
        return (new Phpmq\Admin($url, $token, timeout: 5.0))->$call($queue, $key, ...$time);
    },
    'retry' => fn (int $handle, int|float $delay, ?string $error, ?int $limit) =>
        $transport->retry($messages[$handle], $delay, $error === null ? null : new Exception($error), $limit),
    'retryBytes' => fn (int $handle, int|float $delay, ?string $error, ?int $limit) =>
        $client()->retry($messages[$handle], $delay, $error === null ? null : new Exception($error), $limit),
    'extend' => fn (int $handle, int|float $seconds) => $transport->extend($messages[$handle], $seconds),
    'info' => function (int $handle) use ($messages): array {
        $info = get_object_vars($messages[$handle]->receipt());
        return array_intersect_key($info, array_flip(['attempt', 'deliveries', 'hold', 'priority', 'group', 'age']));
    },
    'reserve' => function (string $queue, float $timeout) use ($transport, $messages): ?array {
        $message = $transport->reserve($queue, $timeout);
        if ($message === null) {
            return null;
        }
        $messages[] = $message;
        return [
            'handle' => count($messages) - 1,
            'id' => $message->receipt()->id,
            'ttl' => $message->receipt()->remainingTtl(),
            'body' => base64_encode($message->rawBody()),
            'envelope' => $message->envelope(),
        ];
    },
    'ack' => fn (int $handle) => $transport->ack($messages[$handle]),
    'release' => fn (int $handle, string $body, int|float $delay) =>
        $transport->release($messages[$handle], base64_decode($body), $delay),
    'deadLetter' => fn (int $handle, string $body) =>
        $transport->deadLetter($messages[$handle], base64_decode($body)),
    'close' => fn () => [$transport->close(), $client()->close()] && null,
    'publishBytes' => fn (string $body, mixed ...$more) => $client()->publish(base64_decode($body), ...$more),
    'reserveBytes' => function (string $queue, float $timeout) use ($client, $messages): ?array {
        $message = $client()->reserve($queue, $timeout);
        if ($message === null) {
            return null;
        }
        $messages[] = $message;
        return [
            'handle' => count($messages) - 1, 'id' => $message->id, 'ttl' => $message->remainingTtl(),
            'body' => base64_encode($message->content), 'envelope' => null,
        ];
    },
    'ackBytes' => fn (int $handle) => $client()->ack($messages[$handle]),
    'requeueBytes' => fn (int $handle, int|float $delay) => $client()->requeue($messages[$handle], $delay),
    'deadLetterBytes' => fn (int $handle, ?string $reason = null) =>
        $client()->deadLetter($messages[$handle], $reason),
    'problem' => fn (string $body) => Envelope::problem(base64_decode($body)),
    'make' => fn (mixed ...$arguments) => base64_encode(Envelope::make(...$arguments)),
    'makeWith' => function (string $kind) use ($odd): string { // what JSON cannot carry to PHP
        return base64_encode(Envelope::make('urn:babel:a:b', ['list' => [1, ['a/b' => $odd($kind)]]]));
    },
    'makeOf' => fn (string $kind) => base64_encode(Envelope::make('urn:babel:a:b', $odd($kind))),
    'urn' => fn (array $envelope) => Envelope::urn($envelope),
    'carry' => fn (string $body, string $payload) =>
        base64_encode(Envelope::carry(base64_decode($body), base64_decode($payload))),
    'record' => function (string $body, string $payload, string $queue, string $id): ?string {
        $record = Envelope::record(base64_decode($body), base64_decode($payload), $queue, $id);
        return $record === null ? null : base64_encode($record);
    },
    'recode' => function (string $body, int $attempts, ?array $block): string { // as InitPHP's worker
        $envelope = Envelope::view(base64_decode($body)); // as reserve gives it
        $envelope['attempts'] = $attempts;
        if ($block !== null) {
            $envelope['dead_letter'] = $block;
        }
        $flags = JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES;
        return base64_encode(json_encode($envelope, $flags));
    },
    'memory' => fn () => memory_get_peak_usage(),
];

while (($line = fgets(STDIN)) !== false) {
    $order = json_decode($line, true, 600, JSON_THROW_ON_ERROR);
    try {
        $answer = ['value' => $calls[$order['call']](...$order['arguments'])];
    } catch (Throwable $error) {
        $answer = ['error' => $error::class, 'message' => $error->getMessage()];
    }
    echo json_encode($answer, JSON_INVALID_UTF8_SUBSTITUTE | JSON_PARTIAL_OUTPUT_ON_ERROR, 600), "\n";
}
