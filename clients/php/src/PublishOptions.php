<?php

declare(strict_types=1);

namespace Phpmq;

/** What Client::publish is asked for, in the names of the broker's HTTP API. */
final class PublishOptions
{
    private const LONGEST_TTL_S = 100 * 365 * 86_400;
    private const LONGEST_DELAY_S = 10 * 365 * 86_400;
    private const LATEST_DATE = 4_102_444_800; // 2100-01-01

    /**
     * @param array<string, mixed> $named the options of a frame 010
     * @param int|float $ttl seconds
     * @param int|float $delay seconds
     */
    private function __construct(
        private readonly array $named,
        public readonly int|float $ttl,
        public readonly int|float $delay,
    ) {
    }

    /** @throws PhpmqException an option is out of bounds, or excludes another one */
    public static function of(
        int|float $ttl,
        int|float $delay,
        ?\DateTimeInterface $deliverAt,
        ?int $priority,
        ?string $group,
        ?string $uniqueKey,
        string $ifExists,
    ): self {
        self::checkSeconds('ttl', $ttl, self::LONGEST_TTL_S);
        self::checkSeconds('delay', $delay, self::LONGEST_DELAY_S);
        $at = $deliverAt === null ? null : (int) $deliverAt->format('Uv');
        if ($at !== null && ($at < 0 || $at > self::LATEST_DATE * 1000)) {
            throw new PhpmqException("deliverAt is {$deliverAt->format('c')}; it must be from 1970 to 2100");
        }
        if ($at !== null && $delay > 0) {
            throw new PhpmqException("deliverAt excludes a delay ($delay s); omit one of them");
        }
        if ($priority !== null && ($priority < 0 || $priority > 255)) {
            throw new PhpmqException("priority is $priority; it must be 0 (first) to 255");
        }
        self::checkText('group', $group, 255);
        self::checkText('uniqueKey', $uniqueKey, 64);
        if ($ifExists !== 'keep' && $ifExists !== 'replace') {
            throw new PhpmqException("ifExists is \"$ifExists\"; it must be \"keep\" or \"replace\"");
        }
        if ($ifExists === 'replace' && $uniqueKey === null) {
            throw new PhpmqException('ifExists: "replace" needs a uniqueKey');
        }
        $named = [
            'ttl_s' => $ttl, 'delay_s' => $delay ?: null, 'deliver_at' => $at, 'priority' => $priority,
            'group' => $group, 'unique_key' => $uniqueKey, 'if_exists' => $ifExists === 'keep' ? null : $ifExists,
        ];
        return new self(array_filter($named, fn (mixed $value): bool => $value !== null), $ttl, $delay);
    }

    /** Returns the options of a frame 010, or an empty text if the published frame (001) says the same. */
    public function encoded(): string
    {
        $isPlain = array_diff(array_keys($this->named), ['ttl_s']) === [] && is_int($this->ttl);
        return $isPlain ? '' : Json::options($this->named);
    }

    /** Returns whether a broker of an earlier version can do it: a ttl, or a delay, in whole seconds. */
    public function isForEveryBroker(): bool
    {
        $isOther = array_diff(array_keys($this->named), ['ttl_s', 'delay_s']) !== [];
        return !$isOther && min($this->ttl, $this->delay) == 0 && is_int($this->ttl) && is_int($this->delay);
    }

    /** @throws PhpmqException */
    public static function checkSeconds(string $name, int|float $seconds, int $longest = self::LONGEST_DELAY_S): void
    {
        if (!($seconds >= 0 && $seconds <= $longest)) {
            throw new PhpmqException("$name is $seconds s; it must be 0 to $longest");
        }
    }

    private static function checkText(string $name, ?string $text, int $most): void
    {
        $size = strlen($text ?? ' ');
        if ($size < 1 || $size > $most || preg_match('//u', $text ?? '') !== 1) {
            throw new PhpmqException("$name has $size bytes; it must have 1 to $most bytes of UTF-8");
        }
    }
}
