<?php

declare(strict_types=1);

namespace Phpmq;

/** Finds and replaces members in the bytes of a JSON object, which must be valid (call json_decode first). */
final class Json
{
    public const FLAGS = JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES
        | JSON_UNESCAPED_LINE_TERMINATORS | JSON_PRESERVE_ZERO_FRACTION;
    private const BLANK = " \t\r\n";

    /** @return list<array{string, int, int}> name, start of the value, end of the value (exclusive) */
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

    /** Replaces the value of a member that occurs at most once, or adds the member before the last brace. */
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
        for ($at++; ; $at += 2) { // skips a backslash and the character that it escapes
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
