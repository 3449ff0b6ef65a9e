<?php

declare(strict_types=1);

namespace Phpmq;

/** One connection: frames out, frames in. After an error it is of no use any more. */
final class Connection
{
    public const PUBLISH = '001';
    public const CONSUME = '002';
    public const ACKNOWLEDGE = '004';
    public const REQUEUE = '005';
    public const DEAD_LETTER = '006';
    private const QUEUE = '01';
    private const CONTENT = '02';
    private const ID = '03'; // of a message, or the key of a publish
    private const COUNT = '04';
    private const TTL = '05';
    private const LONGEST = ['01' => 259, '02' => 1 << 30, '03' => 64, '05' => 19]; // bytes

    /** @var resource */
    private $stream;
    private string $in = ''; // the frame that is still incomplete
    /** @var array<string, list<Reservation>> dispatched and not yet taken, by queue; a key: 002 was sent */
    private array $dispatched = [];
    /** @var array<string, array<string, Reservation>> taken and not yet settled, by queue and id */
    private array $held = [];
    /** @var array<string, string|true|null> of what was published: null no answer yet, true stored, else why not */
    private array $receipts = [];

    /** @param array<string, mixed> $tls options of PHP's ssl:// context, as cafile or local_cert */
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
            $why ??= $message; // of several the first one is the cause, as a certificate
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

    /** Seconds on a clock that nobody sets. */
    public static function now(): float
    {
        return hrtime(true) / 1e9;
    }

    // -- what a transport does

    /** Publishes and waits for the receipt; gives the reason of a refusal. */
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

    /** Opens the window of a queue once: what is dispatched late waits here for the next call. */
    public function open(string $queue, int $credit): void
    {
        if (!isset($this->dispatched[$queue])) {
            $this->send(self::CONSUME, [self::QUEUE => $queue, self::COUNT => (string) $credit]);
            $this->dispatched[$queue] = [];
        }
        while (count($this->held[$queue] ?? []) >= $credit) { // left unsettled: it goes to the end
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

    /** 004, 005 or 006; they end what this connection holds, or what nobody holds. */
    public function settle(string $type, string $queue, string $id, int $ttl = 0): void
    {
        $packets = [self::QUEUE => $queue, self::ID => $id];
        $this->send($type, $type === self::REQUEUE ? $packets + [self::TTL => (string) $ttl] : $packets);
        unset($this->held[$queue][$id]);
    }

    /** Gives back all that is not settled, and goes when the broker has read it all. */
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
            // the end that was waited for
        }
        fclose($this->stream);
    }

    // -- bytes

    /**
     * Waits for bytes, until a time of now(); a signal ends the wait early.
     *
     * @return bool some came
     * @throws ConnectionLost
     */
    public function wait(float $until): bool
    {
        return $this->select($until, false) && $this->read();
    }

    private function select(float $until, bool $isWriting): bool
    {
        $left = max(0.0, min($until - self::now(), 3600.0));
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

    /** @param array<int|string, string> $packets contents by type */
    private function send(string $type, array $packets): void
    {
        $frame = sprintf('H01%s%02d', $type, count($packets));
        foreach ($packets as $packet => $content) {
            $frame .= sprintf('P%s%029d%s', $packet, strlen($content), $content);
        }
        $this->write($frame);
    }

    /** Sends frames that somebody else has written, as those of php-mq/protocol. */
    public function write(string $frame): void
    {
        $until = self::now() + $this->timeout;
        for ($at = 0; $at < strlen($frame); $at += $size) {
            $size = strlen($part = substr($frame, $at, 1 << 14));
            while ($part !== '') { // the same string again after 0 bytes, as TLS wants it
                $written = @fwrite($this->stream, $part);
                if ($written === false || feof($this->stream)) {
                    throw $this->lost('the broker closed the connection');
                }
                if ($written > 0) {
                    $part = substr($part, $written);
                } elseif (self::now() >= $until) {
                    throw $this->lost("nothing could be sent for $this->timeout s");
                } elseif ($this->select($until, true)) {
                    $this->read(); // or both sides would wait for each other
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
                throw $this->lost("a packet of the broker is broken at byte $at");
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
        $queue = $packets[self::QUEUE] ?? throw $this->lost('a frame of the broker has no queue');
        $id = $packets[self::ID] ?? throw $this->lost('a frame of the broker has no id');
        if ($type === '007') {
            if (array_key_exists($id, $this->receipts)) { // else it comes too late
                $this->receipts[$id] = $packets[self::CONTENT] ?? true;
            }
            return;
        }
        $content = $packets[self::CONTENT] ?? throw $this->lost('a dispatch has no content');
        $ttl = (int) ($packets[self::TTL] ?? 0);
        unset($this->held[$queue][$id]); // it came back, and is dispatched again
        $this->dispatched[$queue][] = new Reservation($id, $content, $ttl, self::now());
    }
}
