<?php

declare(strict_types=1);

namespace Phpmq;

/**
 * How a delivery ends, in the form that the broker of a connection understands.
 *
 * No frame answers it, and the next dispatch may be sent before it is on the broker's disk. So a client keeps
 * it, sends it again on the next connection, and recognizes the message if it comes back.
 */
final class Settlement
{
    private const AGAIN_S = 60; // after which it is on the disk, or the broker has ended
    private const LONGEST_TEXT = 1000; // bytes of an exception's class or message
    private const LONGEST_TRACE = 8 << 10;

    public readonly string $id;
    private readonly string $queue;
    private readonly ?int $attempt;
    private readonly ?float $end; // of the message's time to live, on the clock of Connection::now()
    private int $sentOn = 0; // the number of the connection
    private float $sentAt = 0.0;
    private bool $isFinal = false; // the message cannot come back, unless this was lost

    /**
     * @param string $type 004, 005 or 006: what is sent unless the frame 011 does it
     * @param array<string, mixed> $options of a 011; none if the published frame says the same
     * @param string|null $content new content, for a 011
     * @param array{}|array{string, string, int, string} $copy queue, content, ttl and key of what is published
     *     before the published frame, because that alone says less than a 011
     */
    public function __construct(
        Reservation $message,
        private readonly string $type,
        private readonly array $options = [],
        private readonly ?string $content = null,
        private readonly array $copy = [],
    ) {
        $message->requireOwn();
        [$this->id, $this->queue, $this->attempt] = [$message->id, $message->queue, $message->attempt];
        $ttl = $message->remainingTtl();
        $this->end = $ttl === 0 ? null : Connection::now() + $ttl;
    }

    /** Returns the bytes that it keeps in memory, beyond those of every settlement. */
    public function size(): int
    {
        return strlen($this->content ?? '') + strlen($this->copy[1] ?? '') + strlen($this->options['traceback'] ?? '');
    }

    /** Returns whether to send it on this connection; on another one, it may have been lost. */
    public function isDue(Connection $connection): bool
    {
        $isRepeatable = $this->isFinal || $this->isFailure();
        return $this->sentOn === 0 || $isRepeatable && $this->sentOn !== $connection->number
            && Connection::now() < $this->sentAt + self::AGAIN_S;
    }

    /**
     * Sends it; returns null, or why the broker refused the copy and the message is still reserved.
     *
     * @param bool $pauses whether to take back the credit of the queue
     */
    public function send(Connection $connection, bool $pauses = true): ?string
    {
        if ($this->options !== [] && $connection->knows(Connection::SETTLE)) {
            $this->isFinal = $this->options['action'] === 'dead_letter';
            $options = Json::options($this->options);
            $connection->settle(Connection::SETTLE, $this->queue, $this->id, 0, $pauses, $options, $this->content);
        } else {
            $refusal = $this->copy === [] ? null : $connection->publish(...$this->copy);
            if ($refusal !== null && $refusal !== Client::KEY_CONFLICT) { // a former try stored it
                return "{$this->copy[0]}: $refusal";
            }
            $this->isFinal = $this->type !== Connection::REQUEUE;
            $ttl = $this->end === null ? 0 : max(1, (int) ceil($this->end - Connection::now()));
            $connection->settle($this->type, $this->queue, $this->id, $ttl, $pauses);
        }
        [$this->sentOn, $this->sentAt] = [$connection->number, Connection::now()];
        return null;
    }

    /** Returns whether a delivery is the one that this has settled, so the broker has lost this. */
    public function hasSettled(Reservation $again): bool
    {
        $isSame = $this->isFinal || ($this->isFailure() && $again->attempt === $this->attempt);
        return $isSame && $again->queue === $this->queue;
    }

    /** Returns whether it is a retry that names its attempt; the broker ignores such a one that it knows. */
    private function isFailure(): bool
    {
        return $this->attempt !== null
            && ($this->options['action'] ?? '') === 'retry' && ($this->options['failed'] ?? true);
    }

    /** @return array<string, string> what a 011 says of an error; texts that are too long are cut */
    public static function failure(?\Throwable $error): array
    {
        return $error === null ? [] : [
            'exception' => substr($error::class, 0, self::LONGEST_TEXT),
            'error' => substr($error->getMessage(), 0, self::LONGEST_TEXT),
            'traceback' => substr($error->getTraceAsString(), 0, self::LONGEST_TRACE),
        ];
    }
}
