<?php

declare(strict_types=1);

namespace Phpmq\Tests;

use Phpmq\BadEnvelope;
use Phpmq\Envelope;
use PHPUnit\Framework\TestCase;

final class EnvelopeTest extends TestCase
{
    private const URN = 'urn:babel:orders:created';

    public function testMadeEnvelopeHasWhatTheContractAsksFor(): void
    {
        $envelope = json_decode(Envelope::make(self::URN, ['order_id' => 1042], 'orders', 'trace'), true);
        $this->assertSame(self::URN, $envelope['job']);
        $this->assertSame('trace', $envelope['trace_id']);
        $this->assertSame(['order_id' => 1042], $envelope['data']);
        $this->assertSame('orders', $envelope['meta']['queue']);
        $this->assertSame('php', $envelope['meta']['lang']);
        $this->assertSame(1, $envelope['meta']['schema_version']);
        $this->assertSame(0, $envelope['attempts']);
        $this->assertSame(self::URN, Envelope::urn($envelope));
    }

    public function testEmptyDataIsAnObject(): void
    {
        $this->assertStringContainsString('"data":{}', Envelope::make(self::URN));
    }

    /** @dataProvider unwritable */
    public function testValueThatJsonHasNotIsRefusedWithItsPointer(mixed $value, string $message): void
    {
        $this->expectException(BadEnvelope::class);
        $this->expectExceptionMessage($message);
        Envelope::make(self::URN, ['list' => [1, ['a/b' => $value]]]);
    }

    /** @return array<string, array{mixed, string}> */
    public static function unwritable(): array
    {
        return [
            'a closure' => [fn (): int => 1, '/data/list/1/a~1b is Closure'],
            'an object' => [new \DateTime(), '/data/list/1/a~1b is DateTime'],
            'infinite' => [INF, '/data/list/1/a~1b is INF'],
            'bytes' => ["\xff", '/data/list/1/a~1b is not UTF-8'],
        ];
    }

    public function testUrnIsJobOrItsAlias(): void
    {
        $this->assertSame('urn:a', Envelope::urn(['job' => 'urn:a', 'urn' => 'urn:b']));
        $this->assertSame('urn:b', Envelope::urn(['job' => " \t", 'urn' => 'urn:b']));
        $this->assertSame('', Envelope::urn(['job' => 5]));
    }

    /** @dataProvider malformed */
    public function testProblemIsThatOfTheBroker(string $body, ?string $reason): void
    {
        $this->assertSame($reason, Envelope::problem($body)[0] ?? null);
    }

    /** @return array<string, array{string, ?string}> */
    public static function malformed(): array
    {
        $right = Envelope::make(self::URN, ['n' => 1]);
        return [
            'right' => [$right, null],
            'no JSON' => ['{', 'poison'],
            'no URN' => [str_replace('"job"', '"jab"', $right), 'poison'],
            'no meta' => [str_replace('"meta"', '"mata"', $right), 'missing_meta'],
            'a newer version' => [
                str_replace('"schema_version":1', '"schema_version":2', $right), 'unsupported_schema_version',
            ],
        ];
    }

    public function testNewAttemptsChangeNoOtherByte(): void
    {
        $body = Envelope::make(self::URN, ['e' => new \stdClass(), 'f' => 1.0]);
        $expected = str_replace('"attempts":0', '"attempts":2', $body);
        $this->assertSame($expected, Envelope::withAttempts($body, 2));
    }
}
