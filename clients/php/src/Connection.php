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
    public const PUBLISH_WITH_OPTIONS = '010';
    public const SETTLE = '011';
    public const CONSUME_WITH_OPTIONS = '012';
    private const HELLO = '014';
    private const QUEUE = '01';
    private const CONTENT = '02';
    private const ID = '03'; // message id or publish key
    private const COUNT = '04';
    private const TTL = '05';
    private const OPTIONS = '06'; // a JSON object
    private const CONSUME_OPTIONS = '{"info":true,"keep":true}'; // 013 instead of 003; held messages stay
    private const HELLO_KEY = 'hello';
    private const TLS_ALERT = "\x15\x03"; // the first bytes of a listener with TLS to a client without it
    private const LONGEST = ['01' => 259, '02' => 1 << 30, '03' => 64, '05' => 19, '06' => 1 << 16]; // bytes of packets

    private static int $count = 0;

    public readonly int $number; // of this connection, from 1
    public ?int $maxContent = null; // bytes of a body, as the broker's welcome says
    public bool $endedAtHello = false; // without an answer; the next connection may be different
    /** @var resource */
    private $stream;
    private readonly int $pid; // of the process that opened the connection
    private string $in = ''; // received bytes of an incomplete frame
    private string $out = ''; // frames to send
    private bool $isBusy = false; // sending or receiving, when a signal handler is called
    private bool $hasSent = false;
    private bool $hasReceived = false;
    /** @var list<int>|null numbers of the frames that the broker knows; null while its welcome is awaited */
    private ?array $frames = [];
    /** @var array<string, list<Reservation>> messages not yet taken, by queue; a key exists while it has credit */
    private array $dispatched = [];
    /** @var array<string, bool> queues with held messages whose credit was taken back; whether all of it was used */
    private array $paused = [];
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
        $this->number = ++self::$count;
        if (!Hello::isUnknownAt($address)) {
            $this->frames = null;
            $packets = [self::ID => self::HELLO_KEY, self::OPTIONS => Hello::options()];
            $this->out = self::frame(self::HELLO, $packets); // sent with the first frame
        }
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

    /**
     * Returns whether the broker knows a type of frame; waits for its welcome.
     *
     * @throws ConnectionLost the broker may be of an earlier version: see Hello
     */
    public function knows(string $type): bool
    {
        $began = self::now();
        $this->write('');
        while ($this->frames === null) {
            $until = $this->until($began);
            if (!$this->wait($until) && self::now() >= $until) {
                throw $this->late('no welcome', $began);
            }
        }
        return in_array((int) $type, $this->frames, true);
    }

    // -- called by the transport

    /**
     * Publishes a message and waits for the receipt; returns null if stored, or the reason for a refusal.
     *
     * @param string $options of a frame 010; if there are none, it is a 001
     */
    public function publish(string $queue, string $content, int $ttl, string $key, string $options = ''): ?string
    {
        $began = self::now();
        $this->receipts[$key] = null;
        $packets = [self::QUEUE => $queue, self::CONTENT => $content];
        if ($options === '') {
            $this->send(self::PUBLISH, $packets + [self::TTL => (string) $ttl, self::ID => $key]);
        } else {
            $this->send(self::PUBLISH_WITH_OPTIONS, $packets + [self::OPTIONS => $options, self::ID => $key]);
        }
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
        if (!isset($this->dispatched[$queue]) || isset($this->paused[$queue])) {
            $this->write($this->consumeFrame($queue, $credit));
            $this->dispatched[$queue] ??= [];
            unset($this->paused[$queue]);
        }
    }

    /**
     * Takes back the credit of a queue while nobody asks for its messages; otherwise, a message would
     * wait here although another consumer is free.
     *
     * While a message is held, only a broker that knows 012 can do this: 002 would return the message.
     */
    public function pause(string $queue): void
    {
        if (($this->held[$queue] ?? []) !== [] && $this->knows(self::CONSUME_WITH_OPTIONS)) {
            $this->write($this->consumeFrame($queue, 0));
            $this->paused[$queue] = false;
        } else {
            $this->write($this->pauseFrame($queue));
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

    /**
     * Takes back the credit of a queue while all of it is used.
     *
     * Otherwise, a process that hangs would get its messages again whenever their holds end.
     */
    public function pauseIfFull(string $queue, int $credit): void
    {
        $isFull = count($this->held[$queue] ?? []) >= $credit;
        if ($isFull && !isset($this->paused[$queue]) && $this->knows(self::CONSUME_WITH_OPTIONS)) {
            $this->write($this->consumeFrame($queue, 0));
            $this->paused[$queue] = true;
        }
    }

    /**
     * Sends 004, 005, 006 or 011 for a message that this connection, or no consumer, holds.
     *
     * @param string $options of a 011
     * @param string|null $content new content, for a 011
     */
    public function settle(
        string $type,
        string $queue,
        string $id,
        int $ttl = 0,
        bool $pauses = false,
        string $options = '',
        ?string $content = null,
    ): void {
        $more = match ($type) {
            self::REQUEUE => [self::TTL => (string) $ttl],
            self::SETTLE => [self::OPTIONS => $options] + ($content === null ? [] : [self::CONTENT => $content]),
            default => [],
        };
        $frame = self::frame($type, [self::QUEUE => $queue, self::ID => $id] + $more);
        $before = $this->held[$queue][$id] ?? null;
        unset($this->held[$queue][$id]);
        $this->write($frame . ($pauses && $before !== null ? $this->pauseFrame($queue) : ''));
    }

    /**
     * Sends the options of a 011 that extends the hold of a message, or of all that have arrived.
     *
     * Does nothing if the broker does not know how. A signal handler may call this.
     */
    public function extend(string $options, ?Reservation $only = null): void
    {
        if (!in_array((int) self::SETTLE, $this->frames ?? [], true)) {
            return;
        }
        $frames = '';
        $lists = $only !== null ? [[$only]] : [...array_values($this->held), ...array_values($this->dispatched)];
        foreach ($lists as $messages) {
            foreach ($messages as $message) {
                $packets = [self::QUEUE => $message->queue, self::ID => $message->id, self::OPTIONS => $options];
                $frames .= self::frame(self::SETTLE, $packets);
            }
        }
        $this->write($frames);
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

    private function consumeFrame(string $queue, int $credit): string
    {
        $packets = [self::QUEUE => $queue, self::COUNT => (string) $credit];
        return $this->knows(self::CONSUME_WITH_OPTIONS)
            ? self::frame(self::CONSUME_WITH_OPTIONS, $packets + [self::OPTIONS => self::CONSUME_OPTIONS])
            : self::frame(self::CONSUME, $packets);
    }

    private function pauseFrame(string $queue): string
    {
        $isPaused = ($this->paused[$queue] ?? false) && $this->dispatched[$queue] === [];
        $hasNone = !isset($this->dispatched[$queue]) || $isPaused;
        if ($hasNone || ($this->held[$queue] ?? []) !== [] || $this->in !== '') {
            return '';
        }
        unset($this->dispatched[$queue], $this->paused[$queue]);
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
        $has = $this->select($until, false) && $this->read();
        if ($this->out !== '') { // from a signal handler
            $this->write('');
        }
        return $has;
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
        [$wasBusy, $this->isBusy] = [$this->isBusy, true];
        try {
            return $this->readAll();
        } finally {
            $this->isBusy = $wasBusy;
        }
    }

    private function readAll(): bool
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
            throw $this->ended();
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

    /** Sends frames, also some that were encoded elsewhere, such as by php-mq/protocol. */
    public function write(string $frame): void
    {
        $this->requireOwn();
        $this->out .= $frame;
        if ($this->isBusy) {
            return; // called by a signal handler, so the interrupted call sends it
        }
        $this->isBusy = true;
        try {
            while ($this->out !== '') {
                [$frames, $this->out] = [$this->out, ''];
                $this->sendAll($frames);
            }
        } finally {
            $this->isBusy = false;
        }
    }

    private function sendAll(string $frame): void
    {
        $began = self::now();
        $this->hasSent = true;
        for ($at = 0; $at < strlen($frame); $at += $size) {
            $size = strlen($part = substr($frame, $at, 1 << 14));
            while ($part !== '') { // after 0 bytes, TLS requires a retry with the same string
                $written = @fwrite($this->stream, $part);
                if ($written === false || feof($this->stream)) {
                    $this->read(); // what the broker has said before
                    throw $this->ended();
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

    private function ended(): ConnectionLost
    {
        if (!$this->hasReceived) {
            $this->endedAtHello = $this->frames === null && $this->hasSent;
            $this->endedAtHello ? Hello::notAnswered($this->address) : Hello::forget($this->address);
        }
        return $this->lost('the broker closed the connection');
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
        if (preg_match('/^H01(003|007|013|015)(0[2345])$/D', substr($this->in, 0, 8), $header) !== 1) {
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
            $isRight = preg_match('/^P(0[12356])([0-9]{29})$/D', substr($this->in, $at, 32), $found) === 1;
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
        $this->hasReceived = true;
        $id = $packets[self::ID] ?? throw $this->lost('the broker sent a frame without an id');
        $info = json_decode($packets[self::OPTIONS] ?? '{}', true);
        if ($type === '015') {
            Hello::forget($this->address);
            $this->frames = is_array($info['frames'] ?? null) ? $info['frames'] : [];
            $this->maxContent = is_int($info['max_content'] ?? null) ? $info['max_content'] : null;
            return;
        }
        $queue = $packets[self::QUEUE] ?? throw $this->lost('the broker sent a frame without a queue');
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
            $place = [self::now(), $this->pid, $queue, is_array($info) ? $info : []];
            $this->dispatched[$queue][] = new Reservation($id, $content, $ttl, ...$place);
        }
    }
}
