<?php

declare(strict_types=1);

namespace Phpmq;

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
