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
 * The transport publishes and consumes over one connection, which it opens on the first call and
 * reopens after a loss. docs/guides/php.md describes the frames that each call sends.
 *
 * Processes must not share a transport: create it after pcntl_fork(). A child that uses one which its
 * parent has connected gets an error that says so; what it closes there stays open in the parent.
 */
final class PhpmqTransport implements Transport, ConsumerTransport
{
    private const SHORTEST_WAIT_S = 0.1; // of a reserve, so that a message can cross the network
    private const LARGE = 64 << 10; // bytes of a message that may be above the broker's limit
    private const MOST_LOSSES = 3; // of the connection, while the same large message is sent
    private const QUICK_S = 0.5; // a broker that refuses all connections ends them within this time
    private const KEY_CONFLICT = 'key conflict'; // the broker's reason: it has stored other bytes under the key

    private ?Connection $connection = null;
    private bool $wasConnected = false; // so that a broker that restarts is waited for
    private bool $wasAnswered = false; // since then, a lost connection is taken as temporary
    private readonly Interrupt $interrupt;

    /**
     * @param string $address HOST:PORT, tls://HOST:PORT or unix:PATH of a listener with TTL
     * @param array<string, mixed> $tls options of PHP's SSL context: cafile, local_cert, local_pk …
     * @param float $timeout seconds for connecting, for sending and for a receipt
     * @param int $credit messages of a queue that may be reserved at the same time; one more reserve
     *     requeues the oldest unsettled message
     * @param int $maxContent maximum body size in bytes; use the broker's limits.max_content
     * @param string $deadLetterSuffix suffix of dead-letter queues, the same as in the broker
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
            throw new PhpmqException('timeout and credit must be greater than 0');
        }
        $this->checkQueue($defaultQueue);
        $this->interrupt = new Interrupt();
    }

    public function __destruct()
    {
        $this->close();
    }

    /**
     * Returns when the envelope is on the broker's disk; lost connections do not store it twice.
     *
     * @return string|null the envelope's meta.id, because the broker does not send publishers an id
     * @throws BadEnvelope nothing was sent
     * @throws PublishRefused nothing was stored
     * @throws ConnectionLost the envelope may or may not be stored
     * @throws NotConnected at once: the transport was never connected, and its address is wrong
     */
    public function publish(string $payload, ?string $queue = null): ?string
    {
        Envelope::require($payload);
        $this->put($queue ?? $this->defaultQueue, $payload, 0, bin2hex(random_bytes(16)));
        return Envelope::view($payload)['meta']['id'] ?? null;
    }

    /**
     * Returns the next message, or null if none arrives in time or interrupt() is called.
     *
     * The queue has credit only during the call, so no message waits here for a worker that does
     * something else. A call waits at least 0.1 s.
     *
     * The envelope of a malformed body is empty, or has a fault that InitPHP's dispatcher detects.
     *
     * @throws ConnectionLost no connection within the timeout
     */
    public function reserve(string $queue, float $timeout = 5.0): ?ReceivedMessage
    {
        $this->checkQueue($queue);
        $until = Connection::now() + max(self::SHORTEST_WAIT_S, $timeout);
        try {
            $next = $this->try($until, fn (Connection $c) => $this->next($c, $queue, $until));
        } catch (ConnectionLost $lost) {
            $this->interrupt->isSet() ?: throw $lost;
            $next = null; // interrupted while there was no broker
        } finally {
            $this->interrupt->clear();
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
     * Requeues a message; if the body changed or a delay is given, first publishes a copy.
     *
     * @throws PublishRefused the message is still reserved; settle it in another way
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
        $key = $reservation->id . ':' . (is_int($attempts) ? $attempts : 'copy');
        $retry = $message->queue() . '.retry';
        if ($delaySeconds > 0 && strlen($retry) <= 255) { // otherwise, the retry has no delay
            $this->put($retry, $copy, $delaySeconds, $key, isOnce: true);
        } else {
            $this->put($message->queue(), $copy, $reservation->remainingTtl(), $key, isOnce: true);
        }
        $this->settle(Connection::ACKNOWLEDGE, $message);
    }

    /**
     * Publishes a record of the original bytes with the block from $payload, then dead-letters the message.
     *
     * @throws PublishRefused the message is still reserved
     */
    public function deadLetter(ReceivedMessage $message, string $payload): void
    {
        $reservation = $this->reservationOf($message);
        [$queue, $target] = [$message->queue(), $message->queue() . $this->deadLetterSuffix];
        $isLast = str_ends_with($queue, $this->deadLetterSuffix); // dead letters of a .dlq get no record
        $record = $isLast || !self::fits($target)
            ? null : Envelope::record($reservation->content, $payload, $queue, $reservation->id);
        if ($record !== null && strlen($record) <= $this->maxContent) { // otherwise, the broker writes it
            $this->put($target, $record, 0, $reservation->id . ':dead', isOnce: true);
        }
        $this->settle(Connection::DEAD_LETTER, $message);
    }

    /**
     * Makes the current or next reserve return null; for signal handlers.
     *
     * Until then, other calls wait at most half a second for a broker that does not answer.
     */
    public function interrupt(): void
    {
        $this->interrupt->set();
    }

    /**
     * Returns unsettled messages to their queues and closes. The next call reconnects.
     *
     * In a child of the process that connected, only the child's copy of the descriptor is closed.
     */
    public function close(): void
    {
        [$connection, $this->connection] = [$this->connection, null];
        try {
            $connection?->close();
        } catch (ConnectionLost) {
            // the broker requeues the messages of a lost connection
        }
    }

    private function next(Connection $connection, string $queue, float $until): ?Reservation
    {
        $connection->open($queue, $this->credit);
        while (($next = $connection->take($queue)) === null && !$this->interrupt->isSet()) {
            if (!$connection->wait($until) && Connection::now() >= $until) {
                break;
            }
        }
        if ($next === null) {
            $connection->pause($queue);
        }
        return $next;
    }

    /** @param bool $isOnce whether the key stands for an event, which is stored once, whatever its bytes */
    private function put(string $queue, string $content, int $ttl, string $key, bool $isOnce = false): void
    {
        $this->checkQueue($queue);
        if (strlen($content) > $this->maxContent) {
            $size = strlen($content);
            throw new BadEnvelope("the message is $size bytes; the limit is $this->maxContent (maxContent)");
        }
        $until = Connection::now() + $this->timeout;
        $tries = 0;
        try {
            $reason = $this->try($until, function (Connection $c) use ($queue, $content, $ttl, $key, &$tries) {
                ++$tries;
                return $c->publish($queue, $content, $ttl, $key);
            }, failsAtOnce: true, maxLosses: strlen($content) > self::LARGE ? self::MOST_LOSSES : PHP_INT_MAX);
        } catch (ConnectionLost $lost) {
            if ($tries < self::MOST_LOSSES || strlen($content) <= self::LARGE) {
                throw $lost;
            }
            $size = strlen($content);
            throw new ConnectionLost(
                "the connection was lost $tries times while this message of $size bytes was sent; if it is above the "
                . "broker's limits.max_content, raise that, and pass maxContent: {$lost->getMessage()}"
            );
        }
        if ($reason !== null && !($isOnce && $reason === self::KEY_CONFLICT)) { // a former try stored it
            throw new PublishRefused("$queue: $reason");
        }
    }

    private function settle(string $type, ReceivedMessage $message, int $ttl = 0): void
    {
        [$queue, $id] = [$message->queue(), $this->reservationOf($message)->id];
        $until = Connection::now() + $this->timeout;
        $do = fn (Connection $connection) => $connection->settle($type, $queue, $id, $ttl, pauses: true);
        $this->try($until, $do);
    }

    private function reservationOf(ReceivedMessage $message): Reservation
    {
        $receipt = $message->receipt();
        if (!$receipt instanceof Reservation) {
            throw new PhpmqException('the message was not reserved through a PhpmqTransport');
        }
        if ($receipt->pid !== getmypid()) {
            throw new PhpmqException(
                "process $receipt->pid reserved the message and must settle it; process " . getmypid() . ' is its fork'
            );
        }
        return $receipt;
    }

    /**
     * Runs $do on a connection; until $until, reconnects after each loss, with growing pauses.
     *
     * @template T
     * @param \Closure(Connection): T $do must be idempotent
     * @param bool $failsAtOnce whether not to wait for a broker that was never there
     * @return T
     */
    private function try(
        float $until,
        \Closure $do,
        bool $failsAtOnce = false,
        int $maxLosses = PHP_INT_MAX,
    ): mixed {
        $losses = $silent = 0;
        $began = Connection::now();
        for ($pause = 0.1; ; $pause = min(2 * $pause, 10.0)) {
            $tried = Connection::now();
            try {
                $this->connection ??= new Connection($this->address, $this->tls, $this->timeout, $this->interrupt);
                $this->wasConnected = true;
                $result = $do($this->connection);
                $this->wasAnswered = true;
                return $result;
            } catch (ConnectionLost $lost) {
                $isPermanent = $lost instanceof NotConnected
                    && ($this->connection !== null || ($failsAtOnce && !$this->wasConnected));
                if ($isPermanent || ($this->connection !== null && ++$losses >= $maxLosses)) {
                    $this->connection = null;
                    throw $lost;
                }
                $isSilent = $this->connection !== null && Connection::now() - $tried < self::QUICK_S;
                if ($failsAtOnce && !$this->wasAnswered && $isSilent && ++$silent >= self::MOST_LOSSES) {
                    $this->connection = null;
                    throw new NotConnected(
                        "$this->address ended $silent connections without an answer; it may not allow this address "
                        . '(tcp.allow), need a client certificate (tcp.tls_client_ca), or have a lower limits.max_content'
                    );
                }
                $this->connection = null;
                $wait = $pause * random_int(50, 100) / 100;
                if (Connection::now() + $wait >= $until) {
                    throw $lost;
                }
                for ($next = Connection::now() + $wait; ($now = Connection::now()) < $next;) {
                    if ($now >= $this->interrupt->limit($began)) {
                        throw $lost;
                    }
                    usleep((int) (min(0.2, $next - $now) * 1e6));
                }
            }
        }
    }

    private function checkQueue(string $queue): void
    {
        $isText = preg_match('/^[^\x{0}-\x{9}\x{B}-\x{1F}\x{7F}-\x{9F}]+$/Du', $queue) === 1;
        if (!$isText || !self::fits($queue)) {
            throw new PhpmqException(
                'a queue name must have 1 to 255 bytes of UTF-8 (up to 259 if it ends in .dlq) and no '
                . 'control characters except line feeds'
            );
        }
    }

    private static function fits(string $queue): bool
    {
        return strlen($queue) <= (str_ends_with($queue, '.dlq') ? 259 : 255);
    }
}
