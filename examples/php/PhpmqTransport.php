<?php
/**
 * BabelQueue envelopes over PHPMQ: one file for BabelQueue's SDK, InitPHP Queue and plain PHP 8.2.
 *
 *     $transport = new Phpmq\PhpmqTransport('127.0.0.1:9100');
 *     $body = Phpmq\Envelope::make('urn:babel:orders:created', ['id' => 1], 'orders');
 *     $transport->publish($body, 'orders');
 *     while (($message = $transport->reserve('orders')) !== null) {
 *         $transport->ack($message);
 *     }
 *     $transport->close();
 *
 * It needs no extension and no package but the two interfaces and the class named below: Composer's
 * babelqueue/php-sdk and initphp/queue have them, and so has contracts.php beside this file.
 * docs/php.md tells what each call does on the wire.
 */

declare(strict_types=1);

namespace Phpmq;

use BabelQueue\Contracts\Transport;
use InitPHP\Queue\Contracts\ConsumerTransport;
use InitPHP\Queue\Message\ReceivedMessage;

/** All that goes wrong here is one of these. */
class PhpmqException extends \RuntimeException
{
}

/** No connection, or it ended: what was reserved over it goes back to its queue. Try again. */
final class ConnectionLost extends PhpmqException
{
}

/** The broker stored nothing and said why, as "queue is full". */
final class PublishRefused extends PhpmqException
{
}

/** What should be published is no envelope; no consumer could handle it. */
final class BadEnvelope extends PhpmqException
{
}

/** Where the members of a JSON object lie in its bytes; of valid JSON only, json_decode comes first. */
final class Json
{
    public const FLAGS = JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES
        | JSON_UNESCAPED_LINE_TERMINATORS | JSON_PRESERVE_ZERO_FRACTION;
    private const BLANK = " \t\r\n";

    /** @return list<array{string, int, int}> name, start of the value, its end (exclusive) */
    public static function members(string $json): array
    {
        $members = [];
        $at = strspn($json, self::BLANK) + 1;
        while (true) {
            $at += strspn($json, self::BLANK . ',', $at);
            if ($json[$at] === '}') {
                return $members;
            }
            $end = self::endOfString($json, $at);
            $name = json_decode(substr($json, $at, $end - $at));
            $at = $end + strspn($json, self::BLANK . ':', $end);
            $end = self::endOfValue($json, $at);
            $members[] = [(string) $name, $at, $end];
            $at = $end;
        }
    }

    /** Replaces the value of a member that is there at most once, or adds it before the last brace. */
    public static function with(string $json, string $name, string $value): string
    {
        $members = self::members($json);
        foreach ($members as [$found, $start, $end]) {
            if ($found === $name) {
                return substr_replace($json, $value, $start, $end - $start);
            }
        }
        $member = ($members === [] ? '' : ',') . json_encode($name, self::FLAGS) . ':' . $value;
        return substr_replace($json, $member, (int) strrpos($json, '}'), 0);
    }

    private static function endOfString(string $json, int $at): int
    {
        for ($at++; ; $at += 2) { // over the backslash and what it escapes
            $at += strcspn($json, '"\\', $at);
            if ($json[$at] === '"') {
                return $at + 1;
            }
        }
    }

    private static function endOfValue(string $json, int $at): int
    {
        if ($json[$at] === '"') {
            return self::endOfString($json, $at);
        }
        if ($json[$at] !== '{' && $json[$at] !== '[') {
            return $at + strcspn($json, self::BLANK . ',}', $at);
        }
        $depth = 0;
        do {
            $at += strcspn($json, '"{}[]', $at);
            if ($json[$at] === '"') {
                $at = self::endOfString($json, $at);
            } else {
                $depth += $json[$at] === '{' || $json[$at] === '[' ? 1 : -1;
                $at++;
            }
        } while ($depth > 0);
        return $at;
    }
}

/** What an envelope says and whether it is right; copies and dead-letter records of it. */
final class Envelope
{
    public const DEPTH = 256; // levels; PHP itself would stop at 512
    public const MAX_ATTEMPTS = 2 ** 31;
    private const WHITE = " \t\n\v\f\r";
    private const HUGE = '/(?<![0-9.])[0-9]{4301}[0-9]*+(?![0-9.eE])/'; // an integer
    private const TYPES = [
        'trace_id' => 'string', 'data' => 'object', 'meta' => 'object', 'attempts' => 'integer',
        'dead_letter' => 'object',
    ];
    private const NESTED_TYPES = [
        'meta' => [
            'id' => 'string', 'queue' => 'string', 'lang' => 'string',
            'schema_version' => 'integer', 'created_at' => 'integer',
        ],
        'dead_letter' => [
            'reason' => 'string', 'error' => 'string', 'exception' => 'string',
            'original_queue' => 'string', 'lang' => 'string', 'failed_at' => 'integer',
            'attempts' => 'integer',
        ],
    ];

    /**
     * Makes a new envelope; without a trace id a new trace begins.
     *
     * @param array<string, mixed>|\stdClass $data of arrays, stdClass, scalars and null; a list is
     *     refused; write {} inside it as new \stdClass()
     * @throws BadEnvelope it cannot be written as JSON, or nobody could read it
     */
    public static function make(
        string $urn,
        array|object $data = [],
        string $queue = 'default',
        ?string $traceId = null,
    ): string {
        self::refuseUnwritable($data, '/data', 2);
        $traceId = trim($traceId ?? '', self::WHITE);
        $envelope = [
            'job' => trim($urn, self::WHITE),
            'trace_id' => $traceId !== '' ? $traceId : self::uuid(),
            'data' => $data === [] ? new \stdClass() : $data,
            'meta' => [
                'id' => self::uuid(),
                'queue' => $queue,
                'lang' => 'php',
                'schema_version' => 1,
                'created_at' => (int) (microtime(true) * 1000),
            ],
            'attempts' => 0,
        ];
        try {
            $body = json_encode($envelope, Json::FLAGS);
        } catch (\JsonException $error) {
            throw new BadEnvelope("the envelope cannot be written: {$error->getMessage()}");
        }
        self::require($body);
        return $body;
    }

    /** Returns the URN of a decoded envelope: job, else its alias urn; empty without both. */
    public static function urn(array $envelope): string
    {
        foreach ([$envelope['job'] ?? null, $envelope['urn'] ?? null] as $urn) {
            if (is_string($urn) && trim($urn, self::WHITE) !== '') {
                return $urn;
            }
        }
        return '';
    }

    /** @throws BadEnvelope a consumer could not handle it */
    public static function require(string $body): void
    {
        $problem = self::problem($body);
        if ($problem !== null) {
            throw new BadEnvelope("not an envelope: {$problem[0]}, {$problem[1]}");
        }
    }

    /**
     * Says why no consumer may handle a body, as the broker's verdict does; null: one may.
     *
     * @return array{string, string}|null reason (poison, too_deep, missing_meta …) and detail
     */
    public static function problem(string $body): ?array
    {
        if (preg_match('//u', $body) !== 1) {
            return ['poison', 'not UTF-8'];
        }
        $envelope = self::decode($body);
        if ($envelope === null) {
            $said = json_last_error() === JSON_ERROR_NONE ? 'no object' : json_last_error_msg();
            return self::isTooDeep($body)
                ? ['too_deep', 'more than ' . self::DEPTH . ' levels']
                : ['poison', "not a JSON object: $said"];
        }
        if (preg_match(self::HUGE, $body) && preg_match(self::HUGE, self::withoutStrings($body))) {
            return ['poison', 'an integer has more than 4300 digits']; // Python reads no such one
        }
        $wrong = self::wrongMember($body, $envelope);
        return $wrong !== null ? ['poison', $wrong] : self::breach($envelope);
    }

    /**
     * Reads an envelope for a handler: urn folded into job, attempts within bounds.
     *
     * @return array<string, mixed> empty for what is no JSON object
     */
    public static function view(string $body): array
    {
        $envelope = self::decode($body);
        if ($envelope === null) {
            return [];
        }
        $envelope['job'] = self::urn($envelope);
        if (is_int($envelope['attempts'] ?? null)) {
            $envelope['attempts'] = max(0, min($envelope['attempts'], self::MAX_ATTEMPTS));
        }
        return $envelope;
    }

    /**
     * Takes attempts from what a worker hands back and all other bytes from what came: a body that
     * went through PHP arrays has lost {} and large numbers. Where the worker changed more, it
     * meant to: its payload is taken as it is.
     */
    public static function carry(string $body, string $payload): string
    {
        [$old, $new] = [self::view($body), self::view($payload)];
        if (self::problem($body) !== null || !is_int($new['attempts'] ?? null)) {
            return $payload;
        }
        $attempts = $new['attempts'];
        unset($old['attempts'], $new['attempts']);
        $flags = Json::FLAGS & ~JSON_PRESERVE_ZERO_FRACTION; // InitPHP writes 1.0 as 1
        try {
            $isSame = json_encode($old, $flags) === json_encode($new, $flags);
        } catch (\JsonException) {
            $isSame = false;
        }
        return $isSame ? self::withAttempts($body, $attempts) ?? $payload : $payload;
    }

    /** Replaces attempts and no other byte; null where it is not there just once. */
    public static function withAttempts(string $body, int $attempts): ?string
    {
        $isOnce = count(array_keys(array_column(Json::members($body), 0), 'attempts', true)) === 1;
        return $isOnce ? Json::with($body, 'attempts', (string) $attempts) : null;
    }

    /**
     * Makes the dead-letter record of a body, with the block and the attempts of $payload.
     *
     * @return string|null null: the broker must make it, for the bytes have to stay as they are
     */
    public static function record(
        string $body,
        string $payload,
        string $queue,
        string $messageId,
    ): ?string {
        $problem = self::problem($body);
        if (($problem[0] ?? null) === 'unsupported_schema_version') {
            return null;
        }
        $given = self::decode($payload) ?? [];
        $block = self::block($problem, $given, $queue, self::view($body));
        $block['message_id'] = $messageId;
        if ($problem === null && is_int($given['attempts'] ?? null)) {
            $body = self::withAttempts($body, $given['attempts']) ?? $body;
        }
        $json = json_encode($block, Json::FLAGS);
        $names = self::decode($body) === null ? [] : array_column(Json::members($body), 0);
        $blocks = count(array_keys($names, 'dead_letter', true));
        $others = array_values(array_diff($names, ['dead_letter', 'raw_encoding']));
        $isSpliced = self::decode($body) !== null && $others !== ['raw'] // which a wrapper has
            && ($blocks === 0 || $blocks === 1 && $problem === null);
        if ($isSpliced) {
            return Json::with($body, 'dead_letter', $json);
        }
        $isText = preg_match('//u', $body) === 1;
        $raw = json_encode($isText ? $body : base64_encode($body), Json::FLAGS);
        return '{"raw":' . $raw . ($isText ? '' : ',"raw_encoding":"base64"')
            . ',"dead_letter":' . $json . '}';
    }

    /** @return array<mixed>|null null: no JSON object; json_last_error() tells what it is */
    private static function decode(string $body): ?array
    {
        $value = json_decode($body, true, self::DEPTH + 1);
        $isObject = is_array($value) && $body[strspn($body, " \t\r\n")] === '{';
        return $isObject ? $value : null;
    }

    /** Counts brackets, whatever they are in: the first of two faults is the reason. */
    private static function isTooDeep(string $body): bool
    {
        $bare = self::withoutStrings($body);
        $depth = 0;
        for ($at = 0; ($at += strcspn($bare, '{}[]', $at)) < strlen($bare); $at++) {
            $depth += $bare[$at] === '{' || $bare[$at] === '[' ? 1 : -1;
            if ($depth > self::DEPTH) {
                return true;
            }
        }
        return false;
    }

    private static function withoutStrings(string $body): string
    {
        return (string) preg_replace('/"(?:[^"\\\\]++|\\\\.)*+"?/s', '', $body);
    }

    /** @param array<mixed> $envelope */
    private static function wrongMember(string $body, array $envelope): ?string
    {
        $mayBeList = ($envelope['meta']['lang'] ?? null) === 'php'; // php-sdk writes {} as []
        foreach (Json::members($body) as [$name, $start, $end]) {
            $value = substr($body, $start, $end - $start);
            if ($name === 'data' && $mayBeList && json_decode($value) === []) {
                continue;
            }
            if (!self::isOf($value, self::TYPES[$name] ?? '')) {
                return "$name is of a wrong type";
            }
            $types = self::NESTED_TYPES[$name] ?? [];
            foreach ($types === [] || $value === 'null' ? [] : Json::members($value) as $member) {
                [$inner, $from, $to] = $member;
                if (!self::isOf(substr($value, $from, $to - $from), $types[$inner] ?? '')) {
                    return "$name.$inner is of a wrong type";
                }
            }
            if ($name === 'data' && !self::isFinite($value)) {
                return 'data holds a number that is no finite double';
            }
        }
        return self::urn($envelope) === '' ? 'missing_urn' : null;
    }

    /** Only long numbers and large exponents can be beyond a double. */
    private static function isFinite(string $json): bool
    {
        $isFinite = true;
        if (preg_match('/[0-9]{200}|[eE]\+?[0-9]{3}/', $json) === 1) {
            $values = [json_decode($json, true, self::DEPTH)];
            array_walk_recursive($values, function (mixed $value) use (&$isFinite): void {
                $isFinite = $isFinite && !(is_float($value) && is_infinite($value));
            });
        }
        return $isFinite;
    }

    /** null is of every type: it counts as missing. 1.0 and what is beyond 64 bits decode to floats. */
    private static function isOf(string $json, string $type): bool
    {
        return $json === 'null' || match ($type) {
            'string' => $json[0] === '"',
            'object' => $json[0] === '{',
            'integer' => is_int(json_decode($json)),
            default => true,
        };
    }

    /**
     * @param array<mixed> $envelope
     * @return array{string, string}|null
     */
    private static function breach(array $envelope): ?array
    {
        $traceId = $envelope['trace_id'] ?? '';
        return match (true) {
            !isset($envelope['meta']) => ['missing_meta', 'no meta'],
            ($envelope['meta']['schema_version'] ?? null) !== 1
                => ['unsupported_schema_version', 'meta.schema_version is not 1'],
            !isset($envelope['data']) => ['invalid_data', 'no data'],
            trim($traceId, self::WHITE) === '' => ['missing_trace_id', 'no trace_id'],
            !isset($envelope['attempts']) => ['invalid_attempts', 'no attempts'],
            default => null,
        };
    }

    /**
     * @param array{string, string}|null $problem
     * @param array<mixed> $payload
     * @param array<mixed> $view
     * @return array<string, mixed> with members of the right types only
     */
    private static function block(?array $problem, array $payload, string $queue, array $view): array
    {
        $given = is_array($payload['dead_letter'] ?? null) ? $payload['dead_letter'] : [];
        $text = fn (string $name): ?string => is_string($given[$name] ?? null) ? $given[$name] : null;
        $number = fn (array $from, string $name, int $else): int =>
            is_int($from[$name] ?? null) ? $from[$name] : $else;
        $reason = $problem !== null ? 'poison' : $text('reason') ?? 'failed';
        $isKnown = in_array($reason, ['failed', 'unknown_urn', 'poison'], true);
        $detail = $problem[0] ?? $text('detail') ?? ($isKnown ? null : $reason);
        return [
            'reason' => $isKnown ? $reason : 'failed',
            'error' => $text('error') ?? $problem[1] ?? null,
            'exception' => $text('exception'),
            'failed_at' => $number($given, 'failed_at', (int) (microtime(true) * 1000)),
            'original_queue' => $queue,
            'attempts' => $number($given, 'attempts', $number($view, 'attempts', 0)),
            'lang' => $text('lang') ?? 'php',
        ] + ($detail === null ? [] : ['detail' => $detail]);
    }

    /** json_encode writes a closure as {} and any object as its public members. */
    private static function refuseUnwritable(mixed $value, string $pointer, int $level): void
    {
        $why = match (true) {
            is_array($value), $value instanceof \stdClass
                => $level > self::DEPTH ? 'is deeper than ' . self::DEPTH . ' levels' : null,
            is_float($value) => is_finite($value) ? null : 'is ' . $value . ', which JSON cannot write',
            is_string($value) => preg_match('//u', $value) === 1 ? null : 'is not UTF-8',
            is_null($value), is_bool($value), is_int($value) => null,
            default => 'is ' . get_debug_type($value) . ': give arrays, stdClass and scalars',
        };
        if ($why !== null) {
            throw new BadEnvelope(substr($pointer, 0, 200) . " $why");
        }
        foreach (is_array($value) || is_object($value) ? $value : [] as $name => $inner) {
            $name = (string) $name;
            if (preg_match('//u', $name) !== 1) {
                throw new BadEnvelope(substr($pointer, 0, 200) . ' has a name that is not UTF-8');
            }
            $step = str_replace(['~', '/'], ['~0', '~1'], $name);
            self::refuseUnwritable($inner, "$pointer/$step", $level + 1);
        }
    }

    private static function uuid(): string
    {
        $bytes = random_bytes(16);
        $bytes[6] = chr(ord($bytes[6]) & 0x0F | 0x40);
        $bytes[8] = chr(ord($bytes[8]) & 0x3F | 0x80);
        return vsprintf('%s%s-%s-%s-%s-%s%s%s', str_split(bin2hex($bytes), 4));
    }
}

/** What the transport keeps about a reserved message; nobody else needs to look into it. */
final class Reservation
{
    public function __construct(
        public readonly string $id,
        public readonly string $content,
        private readonly int $ttl,
        private readonly float $at,
    ) {
    }

    /** The seconds that remain, at least 1; 0: it never expires. */
    public function remainingTtl(): int
    {
        return $this->ttl === 0 ? 0 : max(1, (int) ceil($this->ttl - Connection::now() + $this->at));
    }
}

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
    public function __construct(string $address, array $tls, private readonly float $timeout)
    {
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

/**
 * Publishes and consumes over one connection, which is made at the first call and again when lost.
 *
 * Not for two processes at once: make it after pcntl_fork().
 */
final class PhpmqTransport implements Transport, ConsumerTransport
{
    private ?Connection $connection = null;
    private bool $isInterrupted = false;

    /**
     * @param string $address HOST:PORT, tls://HOST:PORT or unix:PATH, of a listener with TTL
     * @param array<string, mixed> $tls PHP's ssl context options: cafile, local_cert, local_pk …
     * @param float $timeout seconds for connecting, for sending, for a receipt
     * @param int $credit messages of a queue that may be reserved at once; the next reserve gives
     *     the oldest unsettled one back
     * @param int $maxContent bytes, the broker's limits.max_content
     * @param string $deadLetterSuffix as the broker names a queue's dead letters
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
            throw new PhpmqException('timeout and credit must be above 0');
        }
        $this->checkQueue($defaultQueue);
    }

    public function __destruct()
    {
        $this->close();
    }

    /**
     * Returns when the envelope is on the broker's disk; a lost connection stores it once.
     *
     * @return string|null its meta.id: the broker tells a publisher no id
     * @throws BadEnvelope nothing was sent
     * @throws PublishRefused nothing was stored
     * @throws ConnectionLost it may be stored or not
     */
    public function publish(string $payload, ?string $queue = null): ?string
    {
        Envelope::require($payload);
        $this->put($queue ?? $this->defaultQueue, $payload, 0, bin2hex(random_bytes(16)));
        return Envelope::view($payload)['meta']['id'] ?? null;
    }

    /**
     * Gives the next message; null where none came in time, or after interrupt().
     *
     * Of a malformed body the envelope has a fault that InitPHP's dispatcher sees, or is empty.
     *
     * @throws ConnectionLost no connection within the timeout
     */
    public function reserve(string $queue, float $timeout = 5.0): ?ReceivedMessage
    {
        $this->checkQueue($queue);
        $until = Connection::now() + max(0.0, $timeout);
        try {
            $next = $this->try($until, fn (Connection $c) => $this->next($c, $queue, $until));
        } finally {
            $this->isInterrupted = false;
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
     * Puts a message back, with another body or after a delay as a copy that is stored first.
     *
     * @throws PublishRefused the message is still reserved: settle it otherwise
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
        $key = $reservation->id . ':' . (is_int($attempts) ? $attempts : hash('xxh64', $copy));
        $retry = $message->queue() . '.retry';
        if ($delaySeconds > 0 && strlen($retry) <= 255) { // else the next try comes without a delay
            $this->put($retry, $copy, $delaySeconds, $key);
        } else {
            $this->put($message->queue(), $copy, $reservation->remainingTtl(), $key);
        }
        $this->settle(Connection::ACKNOWLEDGE, $message);
    }

    /**
     * Writes the record with the block of $payload and all bytes that came, then ends the message.
     *
     * @throws PublishRefused the message is still reserved
     */
    public function deadLetter(ReceivedMessage $message, string $payload): void
    {
        $reservation = $this->reservationOf($message);
        [$queue, $target] = [$message->queue(), $message->queue() . $this->deadLetterSuffix];
        $isLast = str_ends_with($queue, $this->deadLetterSuffix); // what dies there only ends
        $record = $isLast || !self::fits($target)
            ? null : Envelope::record($reservation->content, $payload, $queue, $reservation->id);
        if ($record !== null && strlen($record) <= $this->maxContent) { // else the broker makes it
            $this->put($target, $record, 0, $reservation->id . ':dead');
        }
        $this->settle(Connection::DEAD_LETTER, $message);
    }

    /** Ends a waiting reserve, or the next one, with null; for signal handlers. */
    public function interrupt(): void
    {
        $this->isInterrupted = true;
    }

    /** Gives back all that is not settled. The next call connects again. */
    public function close(): void
    {
        [$connection, $this->connection] = [$this->connection, null];
        try {
            $connection?->close();
        } catch (ConnectionLost) {
            // the broker gives back what a lost connection held
        }
    }

    private function next(Connection $connection, string $queue, float $until): ?Reservation
    {
        $connection->open($queue, $this->credit);
        while (($next = $connection->take($queue)) === null && !$this->isInterrupted) {
            if (!$connection->wait($until) && Connection::now() >= $until) {
                break;
            }
        }
        return $next;
    }

    private function put(string $queue, string $content, int $ttl, string $key): void
    {
        $this->checkQueue($queue);
        if (strlen($content) > $this->maxContent) {
            throw new BadEnvelope(strlen($content) . " bytes, the limit is $this->maxContent");
        }
        $until = Connection::now() + $this->timeout;
        $reason = $this->try($until, fn (Connection $c) => $c->publish($queue, $content, $ttl, $key));
        if ($reason !== null) {
            throw new PublishRefused("$queue: $reason");
        }
    }

    private function settle(string $type, ReceivedMessage $message, int $ttl = 0): void
    {
        [$queue, $id] = [$message->queue(), $this->reservationOf($message)->id];
        $until = Connection::now() + $this->timeout;
        $this->try($until, fn (Connection $connection) => $connection->settle($type, $queue, $id, $ttl));
    }

    private function reservationOf(ReceivedMessage $message): Reservation
    {
        $receipt = $message->receipt();
        return $receipt instanceof Reservation
            ? $receipt : throw new PhpmqException('the message was not reserved by a PhpmqTransport');
    }

    /**
     * Does something on a connection; a lost one is replaced, after growing pauses, until a time.
     *
     * @template T
     * @param \Closure(Connection): T $do must be harmless when done twice
     * @return T
     */
    private function try(float $until, \Closure $do): mixed
    {
        for ($pause = 0.1; ; $pause = min(2 * $pause, 10.0)) {
            try {
                $this->connection ??= new Connection($this->address, $this->tls, $this->timeout);
                return $do($this->connection);
            } catch (ConnectionLost $lost) {
                $this->connection = null;
                $wait = $pause * random_int(50, 100) / 100;
                if (Connection::now() + $wait >= $until) {
                    throw $lost;
                }
                usleep((int) ($wait * 1e6));
            }
        }
    }

    private function checkQueue(string $queue): void
    {
        $isText = preg_match('/^[^\x{0}-\x{9}\x{B}-\x{1F}\x{7F}-\x{9F}]+$/Du', $queue) === 1;
        if (!$isText || !self::fits($queue)) {
            throw new PhpmqException(
                'a queue has 1 to 255 bytes of UTF-8 (up to 259 if it ends in .dlq) without control '
                . 'characters but line feeds'
            );
        }
    }

    private static function fits(string $queue): bool
    {
        return strlen($queue) <= (str_ends_with($queue, '.dlq') ? 259 : 255);
    }
}
