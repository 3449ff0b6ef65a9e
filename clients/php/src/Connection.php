<?php

declare(strict_types=1);

namespace Phpmq;

/** A connection that sends and receives frames. It cannot be used after an error. */
final class Connection
{
    public const PUBLISH = '001';
    public const CONSUME = '002';
    public const ACKNOWLEDGE = '004';
    public const REQUEUE = '005';
    public const DEAD_LETTER = '006';
    private const QUEUE = '01';
    private const CONTENT = '02';
    private const ID = '03'; // message id or publish key
    private const COUNT = '04';
    private const TTL = '05';
    private const LONGEST = ['01' => 259, '02' => 1 << 30, '03' => 64, '05' => 19]; // maximum bytes by packet type

    /** @var resource */
    private $stream;
    private string $in = ''; // received bytes of an incomplete frame
    /** @var array<string, list<Reservation>> messages not yet taken, by queue; a key exists once 002 was sent */
    private array $dispatched = [];
    /** @var array<string, array<string, Reservation>> messages taken but not yet settled, by queue and id */
    private array $held = [];
    /** @var array<string, string|true|null> by key: null while unanswered, true if stored, else the reason */
    private array $receipts = [];

    /** @param array<string, mixed> $tls options of PHP's SSL context, such as cafile or local_cert */
    public function __construct(
        string $address,
        array $tls = [],
        private readonly float $timeout = 10.0,
    ) {
        $url = match (true) {
            str_starts_with($address, 'unix://') => $address,
            str_starts_with($address, 'unix:') => 'unix://' . substr($address, 5),
            str_contains($address, '://') => $address,
            default => "tcp://$address",
        };
        $options = ['ssl' => $tls, 'socket' => ['tcp_nodelay' => true]];
        $why = null;
        set_error_handler(function (int $level, string $message) use (&$why): bool {
            $why ??= $message; // the first of several warnings names the cause, such as a certificate
            return true;
        });
        try {
            $stream = stream_socket_client(
                $url, $code, $error, $timeout, STREAM_CLIENT_CONNECT, stream_context_create($options),
            );
        } finally {
            restore_error_handler();
        }
        if ($stream === false) {
            $why = $error !== '' ? $error : $why ?? 'no connection';
            throw new ConnectionLost("$address: " . preg_replace('/\s+/', ' ', $why));
        }
        stream_set_blocking($stream, false);
        $this->stream = $stream;
    }

    /** Returns the seconds on a monotonic clock. */
    public static function now(): float
    {
        return hrtime(true) / 1e9;
    }

    // -- called by the transport

    /** Publishes a message and waits for the receipt; returns null if stored, or the reason for a refusal. */
    public function publish(string $queue, string $content, int $ttl, string $key): ?string
    {
        $this->receipts[$key] = null;
        $this->send(self::PUBLISH, [
            self::QUEUE => $queue, self::CONTENT => $content, self::TTL => (string) $ttl,
            self::ID => $key,
        ]);
        for ($until = self::now() + $this->timeout; ($answer = $this->receipts[$key]) === null;) {
            if (!$this->wait($until) && self::now() >= $until) {
                throw $this->lost("no receipt within $this->timeout s");
            }
        }
        unset($this->receipts[$key]);
        return $answer === true ? null : $answer;
    }

    /** Opens a queue's window once; messages that arrive late wait for the next call. */
    public function open(string $queue, int $credit): void
    {
        if (!isset($this->dispatched[$queue])) {
            $this->send(self::CONSUME, [self::QUEUE => $queue, self::COUNT => (string) $credit]);
            $this->dispatched[$queue] = [];
        }
        while (count($this->held[$queue] ?? []) >= $credit) { // an unsettled message goes to the end of its queue
            $oldest = reset($this->held[$queue]);
            $this->settle(self::REQUEUE, $queue, $oldest->id, $oldest->remainingTtl());
        }
    }

    public function take(string $queue): ?Reservation
    {
        $next = array_shift($this->dispatched[$queue]);
        if ($next !== null) {
            $this->held[$queue][$next->id] = $next;
        }
        return $next;
    }

    /** Sends 004, 005 or 006 for a message that this connection, or no consumer, holds. */
    public function settle(string $type, string $queue, string $id, int $ttl = 0): void
    {
        $packets = [self::QUEUE => $queue, self::ID => $id];
        $this->send($type, $type === self::REQUEUE ? $packets + [self::TTL => (string) $ttl] : $packets);
        unset($this->held[$queue][$id]);
    }

    /** Returns unsettled messages to their queues, and closes once the broker has read everything. */
    public function close(): void
    {
        foreach (array_keys($this->dispatched) as $queue) {
            $this->send(self::CONSUME, [self::QUEUE => (string) $queue, self::COUNT => '0']);
        }
        stream_socket_shutdown($this->stream, STREAM_SHUT_WR);
        try {
            for ($until = self::now() + 1; self::now() < $until;) {
                $this->wait($until);
            }
        } catch (ConnectionLost) {
            // the broker has closed the connection, as expected
        }
        fclose($this->stream);
    }

    // -- bytes

    /**
     * Waits for bytes until the given time on the clock of now(), but at most a second; a signal ends
     * the wait early.
     *
     * @return bool whether bytes were received
     * @throws ConnectionLost
     */
    public function wait(float $until): bool
    {
        return $this->select($until, false) && $this->read();
    }

    private function select(float $until, bool $isWriting): bool
    {
        // At most a second, because a signal that arrives just before stream_select() does not end it.
        $left = max(0.0, min($until - self::now(), 1.0));
        [$read, $write, $except] = [[$this->stream], $isWriting ? [$this->stream] : null, null];
        $seconds = (int) $left;
        $count = @stream_select($read, $write, $except, $seconds, (int) (($left - $seconds) * 1e6));
        return $count !== false && $read !== [];
    }

    private function read(): bool
    {
        for ($has = false; ($bytes = @fread($this->stream, 1 << 16)) !== '' && $bytes !== false;) {
            $this->in .= $bytes;
            $has = true;
        }
        while ($has && $this->takeFrame()) {
        }
        if (feof($this->stream)) {
            throw $this->lost('the broker closed the connection');
        }
        return $has;
    }

    /** @param array<int|string, string> $packets contents by packet type */
    private function send(string $type, array $packets): void
    {
        $frame = sprintf('H01%s%02d', $type, count($packets));
        foreach ($packets as $packet => $content) {
            $frame .= sprintf('P%s%029d%s', $packet, strlen($content), $content);
        }
        $this->write($frame);
    }

    /** Sends frames that were encoded elsewhere, such as by php-mq/protocol. */
    public function write(string $frame): void
    {
        $until = self::now() + $this->timeout;
        for ($at = 0; $at < strlen($frame); $at += $size) {
            $size = strlen($part = substr($frame, $at, 1 << 14));
            while ($part !== '') { // after 0 bytes, TLS requires a retry with the same string
                $written = @fwrite($this->stream, $part);
                if ($written === false || feof($this->stream)) {
                    throw $this->lost('the broker closed the connection');
                }
                if ($written > 0) {
                    $part = substr($part, $written);
                } elseif (self::now() >= $until) {
                    throw $this->lost("could not send any data for $this->timeout s");
                } elseif ($this->select($until, true)) {
                    $this->read(); // otherwise, both sides could wait for each other
                }
            }
        }
    }

    private function lost(string $why): ConnectionLost
    {
        return new ConnectionLost($why);
    }

    private function takeFrame(): bool
    {
        $size = strlen($this->in);
        if ($size < 8) {
            return false;
        }
        if (preg_match('/^H01(003|007)(0[234])$/D', substr($this->in, 0, 8), $header) !== 1) {
            throw $this->lost('not a PHPMQ broker: ' . bin2hex(substr($this->in, 0, 8)));
        }
        $packets = [];
        $at = 8;
        for ($left = (int) $header[2]; $left > 0; $left--, $at += 32 + $length) {
            if ($size < $at + 32) {
                return false;
            }
            $isRight = preg_match('/^P(0[1235])([0-9]{29})$/D', substr($this->in, $at, 32), $found) === 1;
            [, $type, $digits] = $isRight ? $found : ['', '', ''];
            $length = (int) $digits;
            if (!$isRight || isset($packets[$type]) || $length > self::LONGEST[$type]) {
                throw $this->lost("the broker sent an invalid packet at byte $at");
            }
            if ($size < $at + 32 + $length) {
                return false;
            }
            $packets[$type] = substr($this->in, $at + 32, $length);
        }
        $this->in = substr($this->in, $at);
        $this->receive($header[1], $packets);
        return true;
    }

    /** @param array<int|string, string> $packets */
    private function receive(string $type, array $packets): void
    {
        $queue = $packets[self::QUEUE] ?? throw $this->lost('the broker sent a frame without a queue');
        $id = $packets[self::ID] ?? throw $this->lost('the broker sent a frame without an id');
        if ($type === '007') {
            if (array_key_exists($id, $this->receipts)) { // otherwise, the receipt is too late
                $this->receipts[$id] = $packets[self::CONTENT] ?? true;
            }
            return;
        }
        $content = $packets[self::CONTENT] ?? throw $this->lost('the broker dispatched a message without content');
        $ttl = (int) ($packets[self::TTL] ?? 0);
        unset($this->held[$queue][$id]); // the message was requeued and is dispatched again
        $this->dispatched[$queue][] = new Reservation($id, $content, $ttl, self::now());
    }
}
