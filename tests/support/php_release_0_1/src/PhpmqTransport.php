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
     * @param int $ttl seconds to live; 0: the message does not expire
     * @param int $delay seconds to wait in QUEUE.retry first; excludes a $ttl
     * @return string|null the envelope's meta.id, because the broker does not send publishers an id
     * @throws BadEnvelope nothing was sent
     * @throws PublishRefused nothing was stored
     * @throws ConnectionLost the envelope may or may not be stored
     * @throws NotConnected at once: the transport was never connected, and its address is wrong
     */
    public function publish(string $payload, ?string $queue = null, int $ttl = 0, int $delay = 0): ?string
    {
        Envelope::require($payload);
        $this->checkSize($payload);
        $this->client->publish($payload, $queue ?? $this->defaultQueue, $ttl, $delay);
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
        return new ReceivedMessage($queue, $next->content, $envelope, $next);
    }

    public function ack(ReceivedMessage $message): void
    {
        $this->client->ack($this->reservationOf($message));
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
            $this->client->requeue($reservation);
            return;
        }
        $copy = $payload === $reservation->content
            ? $payload : Envelope::carry($reservation->content, $payload);
        $this->checkSize($copy);
        $attempts = Envelope::view($copy)['attempts'] ?? null;
        $this->client->replace($reservation, $copy, is_int($attempts) ? (string) $attempts : 'copy', $delaySeconds);
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
        $record = $isLast || !Client::fits($target)
            ? null : Envelope::record($reservation->content, $payload, $queue, $reservation->id);
        if ($record !== null && strlen($record) <= $this->maxContent) { // otherwise, the broker writes it
            $this->client->put($target, $record, 0, $reservation->id . ':dead', isOnce: true);
        }
        $this->client->deadLetter($reservation);
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
