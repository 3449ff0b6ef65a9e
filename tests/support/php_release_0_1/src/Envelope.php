<?php

declare(strict_types=1);

namespace Phpmq;

/** Creates, reads and validates envelopes, their copies and their dead-letter records. */
final class Envelope
{
    public const DEPTH = 256; // maximum nesting levels; PHP's own limit is 512
    public const MAX_ATTEMPTS = 2 ** 31;
    private const WHITE = " \t\n\v\f\r";
    private const HUGE = '/(?<![0-9.])[0-9]{4301}[0-9]*+(?![0-9.eE])/'; // matches an integer of more than 4300 digits
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
     * Returns a new envelope; starts a new trace unless a trace id is given.
     *
     * @param array<string, mixed>|\stdClass $data arrays, stdClass, scalars and null; must not be a
     *     list; for an empty object inside, use new \stdClass()
     * @throws BadEnvelope JSON cannot represent the data, or no consumer could handle the envelope
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
            throw new BadEnvelope("the envelope cannot be encoded: {$error->getMessage()}");
        }
        self::require($body);
        return $body;
    }

    /** Returns the URN of a decoded envelope: job, its alias urn, or an empty string. */
    public static function urn(array $envelope): string
    {
        foreach ([$envelope['job'] ?? null, $envelope['urn'] ?? null] as $urn) {
            if (is_string($urn) && trim($urn, self::WHITE) !== '') {
                return $urn;
            }
        }
        return '';
    }

    /** @throws BadEnvelope no consumer could handle the envelope */
    public static function require(string $body): void
    {
        $problem = self::problem($body);
        if ($problem !== null) {
            throw new BadEnvelope("invalid envelope: {$problem[0]}: {$problem[1]}");
        }
    }

    /**
     * Returns why no consumer may handle a body, as the broker's verdict does, or null if it is valid.
     *
     * @return array{string, string}|null reason (poison, too_deep, missing_meta …) and detail
     */
    public static function problem(string $body): ?array
    {
        if (preg_match('//u', $body) !== 1) {
            return ['poison', 'the body is not valid UTF-8'];
        }
        $envelope = self::decode($body);
        if ($envelope === null) {
            $error = json_last_error() === JSON_ERROR_NONE ? '' : ': ' . json_last_error_msg();
            return self::isTooDeep($body)
                ? ['too_deep', 'nested more than ' . self::DEPTH . ' levels deep']
                : ['poison', "the body is not a JSON object$error"];
        }
        if (preg_match(self::HUGE, $body) && preg_match(self::HUGE, self::withoutStrings($body))) {
            return ['poison', 'an integer has more than 4300 digits']; // Python rejects it
        }
        $wrong = self::wrongMember($body, $envelope);
        return $wrong !== null ? ['poison', $wrong] : self::breach($envelope);
    }

    /**
     * Decodes an envelope for a handler: renames urn to job and clamps attempts.
     *
     * @return array<string, mixed> empty if the body is not a JSON object
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
     * Returns the received body with the attempts of a worker's payload, because a payload that went
     * through PHP arrays has lost {} and large numbers. If the worker changed anything else, the
     * change is intended, and its payload is returned as it is.
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

    /** Replaces attempts and no other byte; returns null unless attempts occurs exactly once. */
    public static function withAttempts(string $body, int $attempts): ?string
    {
        $isOnce = count(array_keys(array_column(Json::members($body), 0), 'attempts', true)) === 1;
        return $isOnce ? Json::with($body, 'attempts', (string) $attempts) : null;
    }

    /**
     * Returns a body's dead-letter record, with the block and the attempts from $payload.
     *
     * @return string|null null if the bytes must not change and the broker must write the record
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
        $isSpliced = self::decode($body) !== null && $others !== ['raw'] // it would resemble a wrapper
            && ($blocks === 0 || $blocks === 1 && $problem === null);
        if ($isSpliced) {
            return Json::with($body, 'dead_letter', $json);
        }
        $isText = preg_match('//u', $body) === 1;
        $raw = json_encode($isText ? $body : base64_encode($body), Json::FLAGS);
        return '{"raw":' . $raw . ($isText ? '' : ',"raw_encoding":"base64"')
            . ',"dead_letter":' . $json . '}';
    }

    /** @return array<mixed>|null null if not a JSON object; json_last_error() then gives the reason */
    private static function decode(string $body): ?array
    {
        $value = json_decode($body, true, self::DEPTH + 1);
        $isObject = is_array($value) && $body[strspn($body, " \t\r\n")] === '{';
        return $isObject ? $value : null;
    }

    /** Counts brackets even in malformed JSON, because too_deep takes precedence over poison. */
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
        $mayBeList = ($envelope['meta']['lang'] ?? null) === 'php'; // php-sdk encodes {} as []
        foreach (Json::members($body) as [$name, $start, $end]) {
            $value = substr($body, $start, $end - $start);
            if ($name === 'data' && $mayBeList && json_decode($value) === []) {
                continue;
            }
            if (!self::isOf($value, self::TYPES[$name] ?? '')) {
                return "$name has the wrong type";
            }
            $types = self::NESTED_TYPES[$name] ?? [];
            foreach ($types === [] || $value === 'null' ? [] : Json::members($value) as $member) {
                [$inner, $from, $to] = $member;
                if (!self::isOf(substr($value, $from, $to - $from), $types[$inner] ?? '')) {
                    return "$name.$inner has the wrong type";
                }
            }
            if ($name === 'data' && !self::isFinite($value)) {
                return 'data contains a number that is not a finite double';
            }
        }
        return self::urn($envelope) === '' ? 'missing_urn' : null;
    }

    /** Decodes only if there are long numbers or large exponents, because others fit in a double. */
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

    /** Accepts null for every type, as a missing member; 1.0 and integers beyond 64 bits are floats. */
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
            !isset($envelope['meta']) => ['missing_meta', 'meta is missing'],
            ($envelope['meta']['schema_version'] ?? null) !== 1
                => ['unsupported_schema_version', 'meta.schema_version is not 1'],
            !isset($envelope['data']) => ['invalid_data', 'data is missing'],
            trim($traceId, self::WHITE) === '' => ['missing_trace_id', 'trace_id is missing'],
            !isset($envelope['attempts']) => ['invalid_attempts', 'attempts is missing'],
            default => null,
        };
    }

    /**
     * @param array{string, string}|null $problem
     * @param array<mixed> $payload
     * @param array<mixed> $view
     * @return array<string, mixed> only members that have the right type
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

    /** Rejects values that json_encode would write as {} (closures) or as their public members (objects). */
    private static function refuseUnwritable(mixed $value, string $pointer, int $level): void
    {
        $why = match (true) {
            is_array($value), $value instanceof \stdClass
                => $level > self::DEPTH ? 'is nested more than ' . self::DEPTH . ' levels deep' : null,
            is_float($value) => is_finite($value) ? null : 'is ' . $value . ', which JSON cannot represent',
            is_string($value) => preg_match('//u', $value) === 1 ? null : 'is not UTF-8',
            is_null($value), is_bool($value), is_int($value) => null,
            default => 'is ' . get_debug_type($value) . '; use arrays, stdClass and scalars',
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
