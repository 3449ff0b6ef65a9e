<?php

declare(strict_types=1);

namespace Phpmq;

use BabelQueue\Contracts\Transport;
use InitPHP\Queue\Contracts\ConsumerTransport;
use InitPHP\Queue\Message\ReceivedMessage;

/**
 * BabelQueue envelopes over PHPMQ, for BabelQueue's SDK, InitPHP Queue and plain PHP 8.2.
 *
 *     $transport = new Phpmq\PhpmqTransport('127.0.0.1:9100');
 *     $body = Phpmq\Envelope::make('urn:babel:orders:created', ['id' => 1], 'orders');
 *     $transport->publish($body, 'orders');
 *     while (($message = $transport->reserve('orders')) !== null) {
 *         $transport->ack($message);
 *     }
 *     $transport->close();
 *
 * It publishes and consumes over one connection, which is made at the first call and again when
 * lost. docs/guides/php.md says what each call does on the wire.
 *
 * Not for two processes at once: make it after pcntl_fork().
 */
final class PhpmqTransport implements Transport, ConsumerTransport
{
    private ?Connection $connection = null;
    private bool $isInterrupted = false;

    /**
     * @param string $address HOST:PORT, tls://HOST:PORT or unix:PATH, of a listener with TTL
     * @param array<string, mixed> $tls PHP's ssl context options: cafile, local_cert, local_pk …
     * @param float $timeout seconds for connecting, for sending, for a receipt
     * @param int $credit messages of a queue that may be reserved at once; the next reserve gives
     *     the oldest unsettled one back
     * @param int $maxContent bytes, the broker's limits.max_content
     * @param string $deadLetterSuffix as the broker names a queue's dead letters
     */
    public function __construct(
        private readonly string $address = '127.0.0.1:9100',
        private readonly string $defaultQueue = 'default',
        private readonly array $tls = [],
        private readonly float $timeout = 10.0,
        private readonly int $credit = 1,
        private readonly int $maxContent = 8 << 20,
        private readonly string $deadLetterSuffix = '.dlq',
    ) {
        if ($timeout <= 0 || $credit < 1) {
            throw new PhpmqException('timeout and credit must be above 0');
        }
        $this->checkQueue($defaultQueue);
    }

    public function __destruct()
    {
        $this->close();
    }

    /**
     * Returns when the envelope is on the broker's disk; a lost connection stores it once.
     *
     * @return string|null its meta.id: the broker tells a publisher no id
     * @throws BadEnvelope nothing was sent
     * @throws PublishRefused nothing was stored
     * @throws ConnectionLost it may be stored or not
     */
    public function publish(string $payload, ?string $queue = null): ?string
    {
        Envelope::require($payload);
        $this->put($queue ?? $this->defaultQueue, $payload, 0, bin2hex(random_bytes(16)));
        return Envelope::view($payload)['meta']['id'] ?? null;
    }

    /**
     * Gives the next message; null where none came in time, or after interrupt().
     *
     * Of a malformed body the envelope has a fault that InitPHP's dispatcher sees, or is empty.
     *
     * @throws ConnectionLost no connection within the timeout
     */
    public function reserve(string $queue, float $timeout = 5.0): ?ReceivedMessage
    {
        $this->checkQueue($queue);
        $until = Connection::now() + max(0.0, $timeout);
        try {
            $next = $this->try($until, fn (Connection $c) => $this->next($c, $queue, $until));
        } finally {
            $this->isInterrupted = false;
        }
        if ($next === null) {
            return null;
        }
        $problem = Envelope::problem($next->content)[0] ?? null;
        $isHidden = in_array($problem, ['poison', 'too_deep', 'missing_trace_id'], true);
        $envelope = $isHidden ? [] : Envelope::view($next->content);
        return new ReceivedMessage($queue, $next->content, $envelope, $next);
    }

    public function ack(ReceivedMessage $message): void
    {
        $this->settle(Connection::ACKNOWLEDGE, $message);
    }

    /**
     * Puts a message back, with another body or after a delay as a copy that is stored first.
     *
     * @throws PublishRefused the message is still reserved: settle it otherwise
     */
    public function release(ReceivedMessage $message, string $payload, int $delaySeconds = 0): void
    {
        $reservation = $this->reservationOf($message);
        if ($payload === $reservation->content && $delaySeconds <= 0) {
            $this->settle(Connection::REQUEUE, $message, $reservation->remainingTtl());
            return;
        }
        $copy = $payload === $reservation->content
            ? $payload : Envelope::carry($reservation->content, $payload);
        $attempts = Envelope::view($copy)['attempts'] ?? null;
        $key = $reservation->id . ':' . (is_int($attempts) ? $attempts : hash('xxh64', $copy));
        $retry = $message->queue() . '.retry';
        if ($delaySeconds > 0 && strlen($retry) <= 255) { // else the next try comes without a delay
            $this->put($retry, $copy, $delaySeconds, $key);
        } else {
            $this->put($message->queue(), $copy, $reservation->remainingTtl(), $key);
        }
        $this->settle(Connection::ACKNOWLEDGE, $message);
    }

    /**
     * Writes the record with the block of $payload and all bytes that came, then ends the message.
     *
     * @throws PublishRefused the message is still reserved
     */
    public function deadLetter(ReceivedMessage $message, string $payload): void
    {
        $reservation = $this->reservationOf($message);
        [$queue, $target] = [$message->queue(), $message->queue() . $this->deadLetterSuffix];
        $isLast = str_ends_with($queue, $this->deadLetterSuffix); // what dies there only ends
        $record = $isLast || !self::fits($target)
            ? null : Envelope::record($reservation->content, $payload, $queue, $reservation->id);
        if ($record !== null && strlen($record) <= $this->maxContent) { // else the broker makes it
            $this->put($target, $record, 0, $reservation->id . ':dead');
        }
        $this->settle(Connection::DEAD_LETTER, $message);
    }

    /** Ends a waiting reserve, or the next one, with null; for signal handlers. */
    public function interrupt(): void
    {
        $this->isInterrupted = true;
    }

    /** Gives back all that is not settled. The next call connects again. */
    public function close(): void
    {
        [$connection, $this->connection] = [$this->connection, null];
        try {
            $connection?->close();
        } catch (ConnectionLost) {
            // the broker gives back what a lost connection held
        }
    }

    private function next(Connection $connection, string $queue, float $until): ?Reservation
    {
        $connection->open($queue, $this->credit);
        while (($next = $connection->take($queue)) === null && !$this->isInterrupted) {
            if (!$connection->wait($until) && Connection::now() >= $until) {
                break;
            }
        }
        return $next;
    }

    private function put(string $queue, string $content, int $ttl, string $key): void
    {
        $this->checkQueue($queue);
        if (strlen($content) > $this->maxContent) {
            throw new BadEnvelope(strlen($content) . " bytes, the limit is $this->maxContent");
        }
        $until = Connection::now() + $this->timeout;
        $reason = $this->try($until, fn (Connection $c) => $c->publish($queue, $content, $ttl, $key));
        if ($reason !== null) {
            throw new PublishRefused("$queue: $reason");
        }
    }

    private function settle(string $type, ReceivedMessage $message, int $ttl = 0): void
    {
        [$queue, $id] = [$message->queue(), $this->reservationOf($message)->id];
        $until = Connection::now() + $this->timeout;
        $this->try($until, fn (Connection $connection) => $connection->settle($type, $queue, $id, $ttl));
    }

    private function reservationOf(ReceivedMessage $message): Reservation
    {
        $receipt = $message->receipt();
        return $receipt instanceof Reservation
            ? $receipt : throw new PhpmqException('the message was not reserved by a PhpmqTransport');
    }

    /**
     * Does something on a connection; a lost one is replaced, after growing pauses, until a time.
     *
     * @template T
     * @param \Closure(Connection): T $do must be harmless when done twice
     * @return T
     */
    private function try(float $until, \Closure $do): mixed
    {
        for ($pause = 0.1; ; $pause = min(2 * $pause, 10.0)) {
            try {
                $this->connection ??= new Connection($this->address, $this->tls, $this->timeout);
                return $do($this->connection);
            } catch (ConnectionLost $lost) {
                $this->connection = null;
                $wait = $pause * random_int(50, 100) / 100;
                if (Connection::now() + $wait >= $until) {
                    throw $lost;
                }
                usleep((int) ($wait * 1e6));
            }
        }
    }

    private function checkQueue(string $queue): void
    {
        $isText = preg_match('/^[^\x{0}-\x{9}\x{B}-\x{1F}\x{7F}-\x{9F}]+$/Du', $queue) === 1;
        if (!$isText || !self::fits($queue)) {
            throw new PhpmqException(
                'a queue has 1 to 255 bytes of UTF-8 (up to 259 if it ends in .dlq) without control '
                . 'characters but line feeds'
            );
        }
    }

    private static function fits(string $queue): bool
    {
        return strlen($queue) <= (str_ends_with($queue, '.dlq') ? 259 : 255);
    }
}
