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

    public function testTtlAndDelayExcludeEachOther(): void
    {
        $this->expectException(PhpmqException::class);
        $this->expectExceptionMessage('the delay (5 s) excludes a ttl (60 s)');
        (new Client(self::NOWHERE))->publish('{}', 'orders', ttl: 60, delay: 5);
    }

    public function testBodyAboveTheLimitIsNotSent(): void
    {
        $this->expectExceptionMessage('the message is 3 bytes; the limit is 2 (maxContent');
        (new Client(self::NOWHERE, maxContent: 2))->publish('123', 'orders');
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
