<?php

declare(strict_types=1);

namespace Phpmq;

/**
 * The first frame of each connection (014), which the broker answers with the frames that it knows (015).
 *
 * A broker of an earlier version closes the connection instead. After two such ends in a row, its address
 * gets no hello for ten minutes, and the client uses the published frames only.
 */
final class Hello
{
    private const ENDS = 2;
    private const REMEMBERED_S = 600;
    private const VERSION = '0.2.0';

    /** @var array<string, array{int, float}> by address: ends in a row, and until when it gets no hello */
    private static array $ends = [];

    /** Returns the options of the frame: who this client is. */
    public static function options(): string
    {
        return Json::options([
            'name' => 'phpmq-lite/client', 'version' => self::VERSION, 'pid' => getmypid(),
            'host' => gethostname() ?: 'unknown',
        ]);
    }

    public static function isUnknownAt(string $address): bool
    {
        return (self::$ends[$address][1] ?? 0.0) > Connection::now();
    }

    /** Counts a connection that ended without a byte after its hello. */
    public static function notAnswered(string $address): void
    {
        $count = (self::$ends[$address][0] ?? 0) + 1;
        self::$ends[$address] = $count < self::ENDS ? [$count, 0.0] : [0, Connection::now() + self::REMEMBERED_S];
    }

    /** Forgets what was learned about an address: it has answered, or did not answer without a hello either. */
    public static function forget(string $address): void
    {
        unset(self::$ends[$address]);
    }
}
