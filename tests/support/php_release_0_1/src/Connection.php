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
    private const TLS_ALERT = "\x15\x03"; // the first bytes of a listener with TLS to a client without it
    private const LONGEST = ['01' => 259, '02' => 1 << 30, '03' => 64, '05' => 19]; // maximum bytes by packet type

    /** @var resource */
    private $stream;
    private readonly int $pid; // of the process that opened the connection
    private string $in = ''; // received bytes of an incomplete frame
    /** @var array<string, list<Reservation>> messages not yet taken, by queue; a key exists while it has credit */
    private array $dispatched = [];
    /** @var array<string, array<string, Reservation>> messages taken but not yet settled, by queue and id */
    private array $held = [];
    /** @var array<string, string|true|null> by key: null while unanswered, true if stored, else the reason */
    private array $receipts = [];

    /**
     * @param array<string, mixed> $tls options of PHP's SSL context, such as cafile or local_cert
     * @param float $timeout seconds for connecting to any address of the name, for sending and for a receipt
     */
    public function __construct(
        private readonly string $address,
        array $tls = [],
        private readonly float $timeout = 10.0,
        private readonly Interrupt $interrupt = new Interrupt(),
    ) {
        $this->pid = getmypid();
        $this->stream = (new Dialer($address, $tls, $timeout, $interrupt))->open();
    }

    public function __destruct()
    {
        if (!$this->isOwn()) {
            $this->abandon();
        }
    }

    /** Returns the seconds on a monotonic clock. */
    public static function now(): float
    {
        return hrtime(true) / 1e9;
    }

    /** Returns whether this process opened the connection; false in a child after pcntl_fork(). */
    public function isOwn(): bool
    {
        return getmypid() === $this->pid;
    }

    // -- called by the transport

    /** Publishes a message and waits for the receipt; returns null if stored, or the reason for a refusal. */
    public function publish(string $queue, string $content, int $ttl, string $key): ?string
    {
        $began = self::now();
        $this->receipts[$key] = null;
        $this->send(self::PUBLISH, [
            self::QUEUE => $queue, self::CONTENT => $content, self::TTL => (string) $ttl,
            self::ID => $key,
        ]);
        while (($answer = $this->receipts[$key]) === null) {
            $until = $this->until($began);
            if (!$this->wait($until) && self::now() >= $until) {
                throw $this->late('no receipt', $began);
            }
        }
        unset($this->receipts[$key]);
        return $answer === true ? null : $answer;
    }

    /**
     * Gives a queue credit, unless it has some; pause() takes it back.
     *
     * Messages that were dispatched before a pause and arrive only now are back in their queue.
     */
    public function open(string $queue, int $credit): void
    {
        $this->requireOwn();
        $this->read();
        while (count($this->held[$queue] ?? []) >= $credit) { // an unsettled message goes to the end of its queue
            $oldest = reset($this->held[$queue]);
            $this->settle(self::REQUEUE, $queue, $oldest->id, $oldest->remainingTtl());
        }
        if (!isset($this->dispatched[$queue])) {
            $this->send(self::CONSUME, [self::QUEUE => $queue, self::COUNT => (string) $credit]);
            $this->dispatched[$queue] = [];
        }
    }

    /**
     * Takes back the credit of a queue while nobody asks for its messages; otherwise, a message would
     * wait here although another consumer is free.
     *
     * Does nothing while a message is held, because 002 would return it, or while one is arriving.
     */
    public function pause(string $queue): void
    {
        $this->write($this->pauseFrame($queue));
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
    public function settle(string $type, string $queue, string $id, int $ttl = 0, bool $pauses = false): void
    {
        $packets = [self::QUEUE => $queue, self::ID => $id];
        $frame = self::frame($type, $type === self::REQUEUE ? $packets + [self::TTL => (string) $ttl] : $packets);
        $before = $this->held[$queue][$id] ?? null;
        unset($this->held[$queue][$id]);
        $this->write($frame . ($pauses && $before !== null ? $this->pauseFrame($queue) : ''));
    }

    /** Returns unsettled messages to their queues, and closes once the broker has read everything. */
    public function close(): void
    {
        if (!$this->isOwn()) {
            $this->abandon();
            return;
        }
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

    /** Closes a descriptor that a fork has copied, without sending anything or ending the parent's TLS. */
    private function abandon(): void
    {
        if (is_resource($this->stream)) {
            Descriptor::detach($this->stream);
            fclose($this->stream);
        }
    }

    private function requireOwn(): void
    {
        if (!$this->isOwn()) {
            throw new PhpmqException(
                "process $this->pid opened this connection, and process " . getmypid() . ' is its fork: '
                . 'create the transport after pcntl_fork(), or call close() first, which leaves the parent connected'
            );
        }
    }

    private function pauseFrame(string $queue): string
    {
        if (!isset($this->dispatched[$queue]) || ($this->held[$queue] ?? []) !== [] || $this->in !== '') {
            return '';
        }
        unset($this->dispatched[$queue]);
        return self::frame(self::CONSUME, [self::QUEUE => $queue, self::COUNT => '0']);
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
        $this->requireOwn();
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
        if (str_starts_with($this->in, self::TLS_ALERT)) {
            $plain = preg_replace('~^tcp://~i', '', $this->address);
            throw new NotConnected(
                "$plain uses TLS: use tls://$plain, with tls: ['cafile' => FILE] for a private authority"
            );
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
        $this->write(self::frame($type, $packets));
    }

    /** @param array<int|string, string> $packets contents by packet type */
    private static function frame(string $type, array $packets): string
    {
        $frame = sprintf('H01%s%02d', $type, count($packets));
        foreach ($packets as $packet => $content) {
            $frame .= sprintf('P%s%029d%s', $packet, strlen($content), $content);
        }
        return $frame;
    }

    /** Sends frames that were encoded elsewhere, such as by php-mq/protocol. */
    public function write(string $frame): void
    {
        $this->requireOwn();
        $began = self::now();
        for ($at = 0; $at < strlen($frame); $at += $size) {
            $size = strlen($part = substr($frame, $at, 1 << 14));
            while ($part !== '') { // after 0 bytes, TLS requires a retry with the same string
                $written = @fwrite($this->stream, $part);
                if ($written === false || feof($this->stream)) {
                    $this->read(); // what the broker has said before
                    throw $this->lost('the broker closed the connection');
                }
                if ($written > 0) {
                    $part = substr($part, $written);
                } elseif (self::now() >= $this->until($began)) {
                    throw $this->late('could not send the data', $began);
                } elseif ($this->select($this->until($began), true)) {
                    $this->read(); // otherwise, both sides could wait for each other
                }
            }
        }
    }

    private function until(float $began): float
    {
        return min($began + $this->timeout, $this->interrupt->limit($began));
    }

    private function late(string $what, float $began): ConnectionLost
    {
        $isLate = self::now() >= $began + $this->timeout;
        return $this->lost($isLate ? "$what within $this->timeout s" : "$what before the interrupt");
    }

    private function lost(string $why): ConnectionLost
    {
        return new ConnectionLost("$this->address: $why");
    }

    private function takeFrame(): bool
    {
        $size = strlen($this->in);
        if ($size < 8) {
            return false;
        }
        if (preg_match('/^H01(003|007)(0[234])$/D', substr($this->in, 0, 8), $header) !== 1) {
            $what = str_starts_with($this->in, 'HTTP/')
                ? 'answers HTTP, as the admin does' : 'is not a PHPMQ broker: it sent ' . bin2hex(substr($this->in, 0, 8));
            throw new NotConnected("$this->address $what; correct the port, such as 9100", mayStart: true);
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
        if (isset($this->dispatched[$queue])) { // otherwise, it crossed a pause and is back in its queue
            $this->dispatched[$queue][] = new Reservation($id, $content, $ttl, self::now(), $this->pid, $queue);
        }
    }
}
