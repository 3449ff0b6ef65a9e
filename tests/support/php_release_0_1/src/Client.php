<?php

declare(strict_types=1);

namespace Phpmq;

/**
 * Publishes and consumes bytes: JSON of your own, text or binary data, without envelopes.
 *
 *     $client = new Phpmq\Client('127.0.0.1:9100');
 *     $client->publish('{"id": 1}', 'orders');
 *     while (($message = $client->reserve('orders')) !== null) {
 *         echo $message->content, "\n";
 *         $client->ack($message);
 *     }
 *     $client->close();
 *
 * It publishes and consumes over one connection, which it opens on the first call and reopens after a
 * loss. PhpmqTransport does the same with envelopes, and uses this class.
 *
 * Processes must not share a client: create it after pcntl_fork(). A child that uses one which its
 * parent has connected gets an error that says so; what it closes there stays open in the parent.
 */
final class Client
{
    private const SHORTEST_WAIT_S = 0.1; // of a reserve, so that a message can cross the network
    private const LARGE = 64 << 10; // bytes of a message that may be above the broker's limit
    private const MOST_LOSSES = 3; // of the connection, while the same large message is sent
    private const QUICK_S = 0.5; // a broker that refuses all connections ends them within this time
    private const RESTART_S = 0.8; // a broker that restarts is away for about this time
    private const PROBE_S = 0.2; // a proxy whose broker is away closes new connections within this time
    private const KEY_CONFLICT = 'key conflict'; // the broker's reason: it has stored other bytes under the key
    private const RETRY = '.retry';
    private const LONGEST_TTL_S = 100 * 365 * 86_400;

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
     */
    public function __construct(
        private readonly string $address = '127.0.0.1:9100',
        private readonly array $tls = [],
        private readonly float $timeout = 10.0,
        private readonly int $credit = 1,
        private readonly int $maxContent = 8 << 20,
    ) {
        if ($timeout <= 0 || $credit < 1) {
            throw new PhpmqException('timeout and credit must be greater than 0');
        }
        $this->interrupt = new Interrupt();
    }

    public function __destruct()
    {
        $this->close();
    }

    /**
     * Returns when the message is on the broker's disk; lost connections do not store it twice.
     *
     * @param int $ttl seconds to live; 0: the message does not expire
     * @param int $delay seconds to wait in QUEUE.retry first; excludes a $ttl
     * @param string|null $key 1 to 64 bytes, to repeat the call after an error or a restart: the broker
     *     stores a key once
     * @throws PhpmqException nothing was sent
     * @throws PublishRefused nothing was stored
     * @throws ConnectionLost the message may or may not be stored
     * @throws NotConnected at once: the client was never connected, and its address is wrong
     */
    public function publish(string $body, string $queue, int $ttl = 0, int $delay = 0, ?string $key = null): void
    {
        if (min($ttl, $delay) < 0 || max($ttl, $delay) > self::LONGEST_TTL_S) {
            throw new PhpmqException("ttl is $ttl s and delay $delay s; each must be 0 to " . self::LONGEST_TTL_S);
        }
        if ($ttl > 0 && $delay > 0) {
            throw new PhpmqException("the delay ($delay s) excludes a ttl ($ttl s); omit one of them");
        }
        if ($delay > 0 && str_ends_with($queue, self::RETRY)) {
            throw new PhpmqException("$queue holds delayed messages; publish to the queue without " . self::RETRY);
        }
        if ($key !== null && ($key === '' || strlen($key) > 64)) {
            throw new PhpmqException('the key is ' . strlen($key) . ' bytes long; it must be 1 to 64');
        }
        $target = $delay > 0 ? $queue . self::RETRY : $queue;
        $this->put($target, $body, max($ttl, $delay), $key ?? bin2hex(random_bytes(16)));
    }

    /**
     * Returns the next message, or null if none arrives in time or interrupt() is called.
     *
     * The queue has credit only during the call, so no message waits here for a worker that does
     * something else. A call waits at least 0.1 s.
     *
     * @throws ConnectionLost no connection within the timeout
     * @throws NotConnected at once: the client was never connected, and waiting would not help
     */
    public function reserve(string $queue, float $timeout = 5.0): ?Reservation
    {
        self::checkQueue($queue);
        $until = Connection::now() + max(self::SHORTEST_WAIT_S, $timeout);
        try {
            return $this->try($until, fn (Connection $c) => $this->next($c, $queue, $until));
        } catch (ConnectionLost $lost) {
            $this->interrupt->isSet() ?: throw $lost;
            return null; // interrupted while there was no broker
        } finally {
            $this->interrupt->clear();
        }
    }

    /** Settles a message as handled. */
    public function ack(Reservation $message): void
    {
        $this->settle(Connection::ACKNOWLEDGE, $message);
    }

    /**
     * Moves a message to the end of its queue, with the rest of its ttl; with a delay, publishes a copy.
     *
     * @throws PublishRefused the message is still reserved; settle it in another way
     */
    public function requeue(Reservation $message, int $delay = 0): void
    {
        if ($delay > 0) {
            $this->replace($message, $message->content, 'copy', $delay);
        } else {
            $this->settle(Connection::REQUEUE, $message, $message->remainingTtl());
        }
    }

    /** Moves a message to its dead-letter queue. */
    public function deadLetter(Reservation $message): void
    {
        $this->settle(Connection::DEAD_LETTER, $message);
    }

    /**
     * Publishes a body in place of a message, which is then acknowledged; stored once for each version.
     *
     * @throws PublishRefused the message is still reserved; settle it in another way
     */
    public function replace(Reservation $message, string $body, string $version, int $delay = 0): void
    {
        $message->requireOwn();
        $key = "$message->id:$version";
        $retry = $message->queue . self::RETRY;
        if ($delay > 0 && self::fits($retry)) { // otherwise, there is no delay
            $this->put($retry, $body, $delay, $key, isOnce: true);
        } else {
            $this->put($message->queue, $body, $message->remainingTtl(), $key, isOnce: true);
        }
        $this->ack($message);
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

    /**
     * Publishes under a key; called by publish and by PhpmqTransport.
     *
     * @param bool $isOnce whether the key stands for an event, which is stored once, whatever its bytes
     */
    public function put(string $queue, string $content, int $ttl, string $key, bool $isOnce = false): void
    {
        self::checkQueue($queue);
        $size = strlen($content);
        if ($size > $this->maxContent) {
            throw new PhpmqException(self::tooLarge($size, $this->maxContent));
        }
        $until = Connection::now() + $this->timeout;
        $tries = 0;
        try {
            $reason = $this->try($until, function (Connection $c) use ($queue, $content, $ttl, $key, &$tries) {
                ++$tries;
                return $c->publish($queue, $content, $ttl, $key);
            }, isPublish: true, maxLosses: $size > self::LARGE ? self::MOST_LOSSES : PHP_INT_MAX);
        } catch (ConnectionLost $lost) {
            if ($tries < self::MOST_LOSSES || $size <= self::LARGE) {
                throw $lost;
            }
            throw new ConnectionLost(
                "the connection was lost $tries times while this message of $size bytes was sent; if it is above the "
                . "broker's limits.max_content, raise that, and pass maxContent: {$lost->getMessage()}"
            );
        }
        if ($reason !== null && !($isOnce && $reason === self::KEY_CONFLICT)) { // a former try stored it
            throw new PublishRefused("$queue: $reason");
        }
    }

    /** Returns the error about a body that is larger than maxContent. */
    public static function tooLarge(int $size, int $limit): string
    {
        return "the message is $size bytes; the limit is $limit (maxContent; use the broker's limits.max_content)";
    }

    /** Throws a PhpmqException unless a queue can have this name. */
    public static function checkQueue(string $queue): void
    {
        $isText = preg_match('/^[^\x{0}-\x{9}\x{B}-\x{1F}\x{7F}-\x{9F}]+$/Du', $queue) === 1;
        if (!$isText || !self::fits($queue)) {
            throw new PhpmqException(
                'a queue name must have 1 to 255 bytes of UTF-8 (up to 259 if it ends in .dlq) and no '
                . 'control characters except line feeds; this one has ' . strlen($queue) . ' bytes: '
                . json_encode(substr($queue, 0, 40), JSON_INVALID_UTF8_SUBSTITUTE | JSON_UNESCAPED_UNICODE)
            );
        }
    }

    /** Returns whether a queue name is not too long. */
    public static function fits(string $queue): bool
    {
        return strlen($queue) <= (str_ends_with($queue, '.dlq') ? 259 : 255);
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

    private function settle(string $type, Reservation $message, int $ttl = 0): void
    {
        $message->requireOwn();
        $until = Connection::now() + $this->timeout;
        $do = fn (Connection $c) => $c->settle($type, $message->queue, $message->id, $ttl, pauses: true);
        $this->try($until, $do);
    }

    /**
     * Runs $do on a connection; until $until, reconnects after each loss, with growing pauses.
     *
     * @template T
     * @param \Closure(Connection): T $do must be idempotent
     * @param bool $isPublish whether to wait only RESTART_S for a broker that was never there; a worker waits
     * @return T
     */
    private function try(
        float $until,
        \Closure $do,
        bool $isPublish = false,
        int $maxLosses = PHP_INT_MAX,
    ): mixed {
        $losses = $silent = 0;
        $began = Connection::now();
        for ($pause = 0.1; ; $pause = min(2 * $pause, 10.0)) {
            $isTried = false;
            $tried = Connection::now();
            try {
                $this->connection ??= new Connection($this->address, $this->tls, $this->timeout, $this->interrupt);
                $this->wasConnected = true;
                if ($losses > 0 && $maxLosses < PHP_INT_MAX) { // does it end by itself?
                    $this->connection->wait(Connection::now() + self::PROBE_S);
                }
                $isTried = true;
                $result = $do($this->connection);
                $this->wasAnswered = true;
                return $result;
            } catch (ConnectionLost $lost) {
                $isPermanent = $lost instanceof NotConnected && ($isPublish || !$lost->mayStart)
                    && ($this->connection !== null || !$this->wasConnected);
                $mayReturn = $isPermanent && $lost->mayStart && $this->connection === null
                    && Connection::now() < $began + self::RESTART_S;
                if (($isPermanent && !$mayReturn) || ($isTried && ++$losses >= $maxLosses)) {
                    $this->connection = null;
                    throw $lost;
                }
                $isSilent = $this->connection !== null && Connection::now() - $tried < self::QUICK_S;
                if ($isPublish && !$this->wasAnswered && $isSilent && ++$silent >= self::MOST_LOSSES) {
                    $this->connection = null;
                    throw new NotConnected(
                        "$this->address ended $silent connections without an answer; it may not allow this address "
                        . '(tcp.allow), need a client certificate (tcp.tls_client_ca), or have a lower limits.max_content'
                    );
                }
                $this->connection = null;
                $wait = ($mayReturn ? 0.1 : $pause) * random_int(50, 100) / 100;
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
}
