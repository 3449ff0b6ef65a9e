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
 * reopens after a loss. docs/guides/php.md describes the frames that each call sends. For bodies that
 * are no envelopes, use Client.
 *
 * Processes must not share a transport: create it after pcntl_fork(). A child that uses one which its
 * parent has connected gets an error that says so; what it closes there stays open in the parent.
 */
final class PhpmqTransport implements Transport, ConsumerTransport
{
    private readonly Client $client;

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
        string $address = '127.0.0.1:9100',
        private readonly string $defaultQueue = 'default',
        array $tls = [],
        float $timeout = 10.0,
        int $credit = 1,
        private readonly int $maxContent = 8 << 20,
        private readonly string $deadLetterSuffix = '.dlq',
    ) {
        $this->client = new Client($address, $tls, $timeout, $credit, $maxContent);
        Client::checkQueue($defaultQueue);
    }

    public function __destruct()
    {
        $this->close();
    }

    /**
     * Returns when the envelope is on the broker's disk; lost connections do not store it twice.
     *
     * @param int|float $ttl seconds to live, from the time it is ready; 0: the message does not expire
     * @param int|float $delay seconds until it is ready
     * @param mixed ...$options key, deliverAt, priority, group, uniqueKey and ifExists, as in Client::publish
     * @return string|null the envelope's meta.id, because the broker does not send publishers an id
     * @throws BadEnvelope nothing was sent
     * @throws PublishRefused nothing was stored
     * @throws ConnectionLost the envelope may or may not be stored
     * @throws NotConnected at once: the transport was never connected, and its address is wrong
     */
    public function publish(
        string $payload,
        ?string $queue = null,
        int|float $ttl = 0,
        int|float $delay = 0,
        mixed ...$options,
    ): ?string {
        Envelope::require($payload);
        $this->checkSize($payload);
        $this->client->publish($payload, $queue ?? $this->defaultQueue, $ttl, $delay, ...$options);
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
     * @throws NotConnected at once: the transport was never connected, and waiting would not help
     */
    public function reserve(string $queue, float $timeout = 5.0): ?ReceivedMessage
    {
        $next = $this->client->reserve($queue, $timeout);
        if ($next === null) {
            return null;
        }
        $problem = Envelope::problem($next->content)[0] ?? null;
        $isHidden = in_array($problem, ['poison', 'too_deep', 'missing_trace_id'], true);
        $envelope = $isHidden ? [] : Envelope::view($next->content);
        if (is_int($envelope['attempts'] ?? null)) {
            $envelope['attempts'] = self::attemptsBefore($next);
        }
        return new ReceivedMessage($queue, $next->content, $envelope, $next);
    }

    public function ack(ReceivedMessage $message): void
    {
        $this->client->ack($this->reservationOf($message));
    }

    /**
     * Requeues a message; if only its attempts have changed, this is a retry.
     *
     * @throws PublishRefused the message is still reserved; settle it in another way
     */
    public function release(ReceivedMessage $message, string $payload, int|float $delaySeconds = 0): void
    {
        $reservation = $this->reservationOf($message);
        $body = $reservation->content;
        if ($payload === $body && $delaySeconds <= 0) {
            $this->client->requeue($reservation);
            return;
        }
        $copy = $payload === $body ? $payload : Envelope::carry($body, $payload);
        $this->checkSize($copy);
        $attempts = Envelope::view($copy)['attempts'] ?? null;
        $version = is_int($attempts) ? (string) $attempts : 'copy';
        if ($copy !== $body && is_int($attempts) && $copy === Envelope::withAttempts($body, $attempts)) {
            $this->again($reservation, $copy, $attempts, max(0, $delaySeconds), []);
        } else {
            $this->client->replace($reservation, $copy, $version, max(0, $delaySeconds));
        }
    }

    /**
     * Lets a message whose handler has failed wait for its next attempt; its envelope gets one attempt more.
     *
     * The broker shows the error and the next time on the message's page.
     *
     * @param int|null $limit of attempts, which is only shown: the caller decides after which one to stop
     * @throws PublishRefused the message is still reserved; settle it in another way
     */
    public function retry(
        ReceivedMessage $message,
        int|float $delay = 0,
        ?\Throwable $error = null,
        ?int $limit = null,
    ): void {
        $reservation = $this->reservationOf($message);
        $attempts = $message->attempts() + 1;
        $copy = Envelope::withAttempts($reservation->content, $attempts) ?? $reservation->content;
        $options = $limit === null ? [] : ['limit' => $limit];
        $this->again($reservation, $copy, $attempts, $delay, $options + Settlement::failure($error));
    }

    /**
     * Dead-letters a message with the reason and the error of the block in $payload.
     *
     * A broker of an earlier version is sent the record first, made of the original bytes and the block.
     *
     * @throws PublishRefused the message is still reserved
     */
    public function deadLetter(ReceivedMessage $message, string $payload, ?\Throwable $error = null): void
    {
        $reservation = $this->reservationOf($message);
        [$queue, $target] = [$message->queue(), $message->queue() . $this->deadLetterSuffix];
        $isLast = str_ends_with($queue, $this->deadLetterSuffix); // dead letters of a .dlq get no record
        $record = $isLast || !Client::fits($target)
            ? null : Envelope::record($reservation->content, $payload, $queue, $reservation->id);
        $copy = $record !== null && strlen($record) <= $this->maxContent // otherwise, the broker writes it
            ? [$target, $record, 0, $reservation->id . ':dead'] : [];
        $cause = Envelope::cause($reservation->content, $payload) + Settlement::failure($error);
        $options = ['action' => 'dead_letter'] + $cause;
        $this->client->settle(new Settlement($reservation, Connection::DEAD_LETTER, $options, copy: $copy));
    }

    /**
     * Lets the hold of a message end $seconds from now; see also JobTimer.
     *
     * @throws PhpmqException the broker is of an earlier version, and cannot do it
     */
    public function extend(ReceivedMessage $message, int|float $seconds): void
    {
        $this->client->extend($this->reservationOf($message), $seconds);
    }

    /** Does something that may throw, at the end of the call that runs, if there is one; for signal handlers. */
    public function whenIdle(\Closure $do): void
    {
        $this->client->whenIdle($do);
    }

    /** Extends the holds of all reserved messages, if that can be done at once; for signal handlers. */
    public function extendHeld(float $seconds): void
    {
        $this->client->extendHeld($seconds);
    }

    /**
     * Makes the current or next reserve return null; for signal handlers.
     *
     * Until then, other calls wait at most half a second for a broker that does not answer.
     */
    public function interrupt(): void
    {
        $this->client->interrupt();
    }

    /**
     * Returns unsettled messages to their queues and closes. The next call reconnects.
     *
     * In a child of the process that connected, only the child's copy of the descriptor is closed.
     */
    public function close(): void
    {
        $this->client->close();
    }

    /**
     * Sends a retry; the broker counts the attempt, unless somebody else counts differently.
     *
     * @param array<string, mixed> $options
     */
    private function again(Reservation $message, string $copy, int $attempts, int|float $delay, array $options): void
    {
        $isCounted = $attempts - 1 === self::attemptsBefore($message) && Envelope::attempts($message->content) >= 0;
        $named = ['attempt' => $message->attempt ?? $attempts] + $options;
        $this->client->again($message, $copy, (string) $attempts, $delay, $named, $isCounted ? null : $copy);
    }

    /** Returns how many attempts were before; the broker adds 1 to those in an envelope, but not in an opaque queue. */
    private static function attemptsBefore(Reservation $message): int
    {
        $before = max(Envelope::attempts($message->content) ?? 0, ($message->attempt ?? 1) - 1);
        return min($before, Envelope::MAX_ATTEMPTS);
    }

    private function checkSize(string $content): void
    {
        if (strlen($content) > $this->maxContent) {
            throw new BadEnvelope(Client::tooLarge(strlen($content), $this->maxContent));
        }
    }

    private function reservationOf(ReceivedMessage $message): Reservation
    {
        $receipt = $message->receipt();
        if (!$receipt instanceof Reservation) {
            throw new PhpmqException('the message was not reserved through a PhpmqTransport');
        }
        $receipt->requireOwn();
        return $receipt;
    }
}
