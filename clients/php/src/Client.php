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
    public const KEY_CONFLICT = 'key conflict'; // the broker's reason: it has stored other bytes under the key
    private const RETRY = '.retry';
    private const KEPT = 5_000; // settlements that may have been lost
    private const KEPT_BYTES = 4 << 20; // of their contents, at least those of the last one

    private ?Connection $connection = null;
    private int $calls = 0; // that run, when a signal handler is called
    private ?\Closure $deferred = null; // by a signal handler, until no call runs
    private bool $wasConnected = false; // so that a broker that restarts is waited for
    private bool $wasAnswered = false; // since then, a lost connection is taken as temporary
    private readonly Interrupt $interrupt;
    /** @var array<string, Settlement> by message id, the last one at the end */
    private array $settlements = [];
    private int $keptBytes = 0; // of their contents
    private int $settledOn = 0; // the number of the connection on which all of them were sent
    /** @var array<string, string> by message id: why a copy was refused */
    private array $refusals = [];

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
     * A broker of an earlier version knows a $ttl or a $delay in whole seconds, and no other option.
     *
     * @param int|float $ttl seconds to live, from the time it is ready; 0: the message does not expire
     * @param int|float $delay seconds until it is ready
     * @param string|null $key 1 to 64 bytes, to repeat the call after an error or a restart: the broker
     *     stores a key once
     * @param \DateTimeInterface|null $deliverAt when it is ready; excludes a $delay
     * @param int|null $priority 0 (first) to 255; 128 without it
     * @param string|null $group 1 to 255 bytes, for a queue that delivers one message of a group at a time
     * @param string|null $uniqueKey 1 to 64 bytes: while the queue has a message with this key, nothing is stored
     * @param string $ifExists with "replace", that message is replaced; refused while a consumer holds it
     * @throws PhpmqException nothing was sent
     * @throws PublishRefused nothing was stored
     * @throws ConnectionLost the message may or may not be stored
     * @throws NotConnected at once: the client was never connected, and its address is wrong
     */
    public function publish(
        string $body,
        string $queue,
        int|float $ttl = 0,
        int|float $delay = 0,
        ?string $key = null,
        ?\DateTimeInterface $deliverAt = null,
        ?int $priority = null,
        ?string $group = null,
        ?string $uniqueKey = null,
        string $ifExists = 'keep',
    ): void {
        $options = PublishOptions::of($ttl, $delay, $deliverAt, $priority, $group, $uniqueKey, $ifExists);
        if ($delay > 0 && str_ends_with($queue, self::RETRY)) {
            throw new PhpmqException("$queue holds delayed messages; publish to the queue without " . self::RETRY);
        }
        if ($key !== null && ($key === '' || strlen($key) > 64)) {
            throw new PhpmqException('the key is ' . strlen($key) . ' bytes long; it must be 1 to 64');
        }
        $this->put($queue, $body, $options, $key ?? bin2hex(random_bytes(16)));
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
        $this->settle(new Settlement($message, Connection::ACKNOWLEDGE));
    }

    /**
     * Moves a message to the end of its queue, at once or after a delay, with the rest of its ttl.
     *
     * @throws PublishRefused the message is still reserved; settle it in another way
     */
    public function requeue(Reservation $message, int|float $delay = 0): void
    {
        if ($delay > 0) {
            $this->replace($message, $message->content, 'copy', $delay);
        } else {
            $this->settle(new Settlement($message, Connection::REQUEUE));
        }
    }

    /**
     * Lets a message whose attempt has failed wait for its next attempt.
     *
     * The broker counts it, and shows the error and the next time on the message's page. An envelope gets
     * one attempt more. A broker of an earlier version gets a copy of the message instead.
     *
     * @param int|null $limit of attempts, which is only shown: the caller decides after which one to stop
     * @param string|null $body replaces the message's
     * @throws PublishRefused the message is still reserved; settle it in another way
     */
    public function retry(
        Reservation $message,
        int|float $delay = 0,
        ?\Throwable $error = null,
        ?int $limit = null,
        ?string $body = null,
    ): void {
        $options = array_filter(['attempt' => $message->attempt, 'limit' => $limit], is_int(...));
        $options += Settlement::failure($error);
        $this->again($message, $body ?? $message->content, 'copy', $delay, $options, $body);
    }

    /**
     * Moves a message to its dead-letter queue.
     *
     * @param string|null $reason in a word, such as card_declined, for its record and its page
     */
    public function deadLetter(Reservation $message, ?string $reason = null, ?\Throwable $error = null): void
    {
        $options = $reason === null && $error === null
            ? [] : ['action' => 'dead_letter', 'reason' => $reason ?? 'failed'] + Settlement::failure($error);
        $this->settle(new Settlement($message, Connection::DEAD_LETTER, $options));
    }

    /**
     * Lets the hold of a message end $seconds from now, sooner or later than before; see also JobTimer.
     *
     * The broker allows at most its limits.max_hold_s, counted from the dispatch.
     *
     * @throws PhpmqException the broker is of an earlier version, and cannot do it
     */
    public function extend(Reservation $message, int|float $seconds): void
    {
        $message->requireOwn();
        PublishOptions::checkSeconds('the hold', $seconds);
        $options = Json::options(['action' => 'extend', 'hold_s' => $seconds]);
        $this->try(Connection::now() + $this->timeout, function (Connection $c) use ($message, $options): void {
            $this->require($c, Connection::SETTLE);
            $c->extend($options, $message);
        });
    }

    /** Does something that may throw, at the end of the call that runs, if there is one; for signal handlers. */
    public function whenIdle(\Closure $do): void
    {
        if ($this->calls > 0) {
            $this->deferred = $do; // an exception within a frame would break the connection
        } else {
            $do();
        }
    }

    /** Extends the holds of all reserved messages, if that can be done at once; for signal handlers. */
    public function extendHeld(float $seconds): void
    {
        try {
            $this->connection?->extend(Json::options(['action' => 'extend', 'hold_s' => $seconds]));
        } catch (ConnectionLost) {
            // settling the message connects again
        }
    }

    /**
     * Puts a body in place of a message, after a delay; its attempts do not count.
     *
     * A broker of an earlier version gets a copy, stored once for each version.
     *
     * @throws PublishRefused the message is still reserved; settle it in another way
     */
    public function replace(Reservation $message, string $body, string $version, int|float $delay = 0): void
    {
        $content = $body === $message->content ? null : $body;
        $this->again($message, $body, $version, $delay, ['failed' => false], $content);
    }

    /**
     * Sends a retry; called by PhpmqTransport, too.
     *
     * @param string $copy body of the copy that a broker of an earlier version gets
     * @param string $version of the copy, which is stored once for each
     * @param array<string, mixed> $options of the 011
     */
    public function again(
        Reservation $message,
        string $copy,
        string $version,
        int|float $delay,
        array $options,
        ?string $content,
    ): void {
        PublishOptions::checkSeconds('delay', $delay);
        $retry = $message->queue . self::RETRY;
        [$queue, $ttl] = $delay > 0 && self::fits($retry) // otherwise, a copy has no delay
            ? [$retry, (int) ceil($delay)] : [$message->queue, $message->remainingTtl()];
        $options = ['action' => 'retry', 'delay_s' => $delay] + $options;
        $former = [$queue, $copy, $ttl, "$message->id:$version"];
        $this->settle(new Settlement($message, Connection::ACKNOWLEDGE, $options, $content, $former));
    }

    /**
     * Settles a message; called by PhpmqTransport, too.
     *
     * Without a broker, this raises ConnectionLost after the timeout; the settlement is then sent first on the
     * next connection.
     */
    public function settle(Settlement $settlement): void
    {
        $id = $settlement->id;
        $this->forget($id);
        $this->settlements[$id] = $settlement;
        $this->keptBytes += $settlement->size();
        foreach ($this->settlements as $oldest => $former) {
            $isTooLarge = $this->keptBytes > self::KEPT_BYTES && $former !== $settlement;
            if (count($this->settlements) <= self::KEPT && !$isTooLarge) {
                break;
            }
            if (count($this->settlements) > self::KEPT || $former->size() > 0) {
                $this->forget($oldest);
            }
        }
        $this->try(Connection::now() + $this->timeout, fn (Connection $c) => $this->sendSettlement($settlement, $c));
        if (isset($this->refusals[$id])) {
            $reason = $this->refusals[$id];
            unset($this->refusals[$id]);
            throw new PublishRefused($reason);
        }
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
            [$this->settlements, $this->keptBytes] = [[], 0]; // the broker has read them
        } catch (ConnectionLost) {
            // the broker requeues the messages of a lost connection
        }
    }

    /**
     * Publishes under a key.
     */
    private function put(string $queue, string $content, PublishOptions $options, string $key): void
    {
        self::checkQueue($queue);
        $size = strlen($content);
        if ($size > $this->maxContent) {
            throw new PhpmqException(self::tooLarge($size, $this->maxContent));
        }
        $until = Connection::now() + $this->timeout;
        $tries = 0;
        try {
            $reason = $this->try($until, function (Connection $c) use ($queue, $content, $options, $key, &$tries) {
                $isPlain = ($encoded = $options->encoded()) === '';
                $isQuick = $isPlain && strlen($content) <= self::LARGE && $tries === 0; // needs no welcome
                $isKnown = $isQuick || $c->knows(Connection::PUBLISH_WITH_OPTIONS);
                if (strlen($content) > ($c->maxContent ?? PHP_INT_MAX)) {
                    throw new PhpmqException("$this->address: " . self::tooLarge(strlen($content), $c->maxContent));
                }
                ++$tries;
                if ($isPlain || $isKnown) {
                    return $c->publish($queue, $content, (int) $options->ttl, $key, $encoded);
                }
                $options->isForEveryBroker() ?: $this->require($c, Connection::PUBLISH_WITH_OPTIONS);
                self::checkQueue($queue . self::RETRY);
                return $c->publish($queue . self::RETRY, $content, (int) $options->delay, $key);
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
        if ($reason !== null) {
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
        $until = max($until, Connection::now() + self::SHORTEST_WAIT_S);
        while (!$this->interrupt->isSet()) {
            if (($next = $connection->take($queue)) !== null) {
                if (!$this->isSettled($next, $connection)) {
                    $connection->pauseIfFull($queue, $this->credit);
                    return $next;
                }
            } elseif (!$connection->wait($until) && Connection::now() >= $until) {
                break;
            }
        }
        $connection->pause($queue);
        return null;
    }

    /** Settles a message again that has come back because its settlement was lost; returns whether it has. */
    private function isSettled(Reservation $message, Connection $connection): bool
    {
        $settlement = $this->settlements[$message->id] ?? null;
        if ($settlement?->hasSettled($message) && $settlement->send($connection, pauses: false) === null) {
            return true;
        }
        $this->forget($message->id);
        return false;
    }

    private function forget(string $id): void
    {
        if (isset($this->settlements[$id])) {
            $this->keptBytes -= $this->settlements[$id]->size();
            unset($this->settlements[$id]);
        }
    }

    /** Sends the settlements that no connection has sent, or that the last one may have lost. */
    private function sendSettlements(Connection $connection): void
    {
        if ($this->settledOn === $connection->number) {
            return;
        }
        foreach ($this->settlements as $settlement) {
            $this->sendSettlement($settlement, $connection);
        }
        $this->settledOn = $connection->number;
    }

    private function sendSettlement(Settlement $settlement, Connection $connection): void
    {
        $reason = $settlement->isDue($connection) ? $settlement->send($connection) : null;
        if ($reason !== null) {
            $this->forget($settlement->id);
            $this->refusals[$settlement->id] = $reason;
        }
    }

    private function require(Connection $connection, string $type): void
    {
        if (!$connection->knows($type)) {
            $isSettle = $type === Connection::SETTLE;
            throw new PhpmqException(
                "the broker at $this->address is of an earlier version, which does not know frame $type: upgrade it, "
                . ($isSettle ? 'or settle the message in time' : 'or use only a ttl or a delay in whole seconds')
            );
        }
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
        ++$this->calls;
        try {
            return $this->tryUntil($until, $do, $isPublish, $maxLosses);
        } finally {
            if (--$this->calls === 0 && $this->deferred !== null) {
                [$deferred, $this->deferred] = [$this->deferred, null];
                $deferred();
            }
        }
    }

    private function tryUntil(float $until, \Closure $do, bool $isPublish, int $maxLosses): mixed
    {
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
                $this->sendSettlements($this->connection);
                $result = $do($this->connection);
                $this->wasAnswered = true;
                return $result;
            } catch (ConnectionLost $lost) {
                if ($this->connection?->endedAtHello && ++$silent < self::MOST_LOSSES) {
                    $this->connection = null;
                    continue; // it may be of an earlier version; the next connections show it
                }
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
