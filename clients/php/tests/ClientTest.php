<?php

declare(strict_types=1);

namespace Phpmq\Tests;

use Phpmq\Client;
use Phpmq\NotConnected;
use Phpmq\PhpmqException;
use PHPUnit\Framework\TestCase;

/** Tests with the broker at PHPMQ_ADDRESS if that is set, and without a broker otherwise. */
final class ClientTest extends TestCase
{
    private const NOWHERE = '127.0.0.1:1';

    public function testPublishSaysThatNothingListens(): void
    {
        $this->expectException(NotConnected::class);
        $this->expectExceptionMessage('no broker listens there');
        (new Client(self::NOWHERE))->publish('{}', 'orders');
    }

    /**
     * @dataProvider wrongOptions
     * @param array<string, mixed> $options
     */
    public function testOptionThatCannotBeIsRefused(array $options, string $message): void
    {
        $this->expectException(PhpmqException::class);
        $this->expectExceptionMessage($message);
        (new Client(self::NOWHERE))->publish('{}', 'orders', ...$options);
    }

    /** @return array<string, array{array<string, mixed>, string}> */
    public static function wrongOptions(): array
    {
        $date = new \DateTimeImmutable('2027-01-01T08:00+01:00');
        return [
            'ttl' => [['ttl' => -1], 'ttl is -1 s; it must be 0 to 3153600000'],
            'infinite' => [['ttl' => NAN], 'ttl is NAN s; it must be 0 to 3153600000'],
            'delay' => [['delay' => 1e9], 'delay is 1000000000 s; it must be 0 to 315360000'],
            'date' => [['deliverAt' => $date->modify('+100 years')], 'it must be from 1970 to 2100'],
            'both' => [['deliverAt' => $date, 'delay' => 5], 'deliverAt excludes a delay (5 s); omit one of them'],
            'priority' => [['priority' => 256], 'priority is 256; it must be 0 (first) to 255'],
            'group' => [['group' => ''], 'group has 0 bytes; it must have 1 to 255 bytes of UTF-8'],
            'unique key' => [['uniqueKey' => str_repeat('k', 65)], 'uniqueKey has 65 bytes; it must have 1 to 64'],
            'bytes' => [['uniqueKey' => "\xff"], 'uniqueKey has 1 bytes; it must have 1 to 64 bytes of UTF-8'],
            'if exists' => [['ifExists' => 'fail'], 'ifExists is "fail"; it must be "keep" or "replace"'],
            'no key' => [['ifExists' => 'replace'], 'ifExists: "replace" needs a uniqueKey'],
        ];
    }

    public function testBodyAboveTheLimitIsNotSent(): void
    {
        $this->expectExceptionMessage('the message is 3 bytes; the limit is 2 (maxContent');
        (new Client(self::NOWHERE, maxContent: 2))->publish('123', 'orders');
    }

    public function testFailedAttemptIsCountedAndTheMessageStays(): void
    {
        $address = getenv('PHPMQ_ADDRESS');
        if ($address === false) {
            $this->markTestSkipped('PHPMQ_ADDRESS is not set');
        }
        $queue = 'phpunit-' . bin2hex(random_bytes(4));
        $client = new Client($address);
        $client->publish('later', $queue, delay: 0.5);
        $client->publish('usual', $queue, uniqueKey: 'k');
        $client->publish('twice', $queue, uniqueKey: 'k'); // not stored
        $client->publish('first', $queue, priority: 0, group: 'g');
        $first = $client->reserve($queue);
        $this->assertSame(['first', 1, 0, 'g'], [$first->content, $first->attempt, $first->priority, $first->group]);
        $client->extend($first, 60);
        $client->retry($first, 0.2, new \RuntimeException('no'), limit: 3);
        $bodies = [];
        while (($message = $client->reserve($queue, 1.0)) !== null) {
            $bodies[] = [$message->content, $message->attempt];
            $client->ack($message);
        }
        sort($bodies);
        $this->assertSame([['first', 2], ['later', 1], ['usual', 1]], $bodies);
        $client->close();
    }

    public function testBytesComeBackUntilTheyAreAcknowledged(): void
    {
        $address = getenv('PHPMQ_ADDRESS');
        if ($address === false) {
            $this->markTestSkipped('PHPMQ_ADDRESS is not set');
        }
        $queue = 'phpunit-' . bin2hex(random_bytes(4));
        $client = new Client($address);
        $client->publish("\x00\xff", $queue, ttl: 60, key: $queue);
        $client->publish("\x00\xff", $queue, ttl: 60, key: $queue); // stored once
        $client->requeue($client->reserve($queue));
        $message = $client->reserve($queue);
        $this->assertSame(["\x00\xff", $queue], [$message->content, $message->queue]);
        $this->assertGreaterThan(30, $message->remainingTtl());
        $client->requeue($message, delay: 1);
        $message = $client->reserve($queue);
        $this->assertSame("\x00\xff", $message->content);
        $client->ack($message);
        $this->assertNull($client->reserve($queue, 0.1));
        $client->close();
    }
}
