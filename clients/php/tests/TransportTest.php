<?php

declare(strict_types=1);

namespace Phpmq\Tests;

use BabelQueue\Contracts\Transport;
use InitPHP\Queue\Contracts\ConsumerTransport;
use Phpmq\BadEnvelope;
use Phpmq\ConnectionLost;
use Phpmq\Envelope;
use Phpmq\PhpmqException;
use Phpmq\PhpmqTransport;
use PHPUnit\Framework\TestCase;

/** Tests with the broker at PHPMQ_ADDRESS if that is set, and without a broker otherwise. */
final class TransportTest extends TestCase
{
    private const NOWHERE = '127.0.0.1:1';

    public function testTransportIsThatOfBothPackages(): void
    {
        $transport = new PhpmqTransport(self::NOWHERE);
        $this->assertInstanceOf(Transport::class, $transport);
        $this->assertInstanceOf(ConsumerTransport::class, $transport);
    }

    public function testBodyThatIsNoEnvelopeIsNotSent(): void
    {
        $this->expectException(BadEnvelope::class);
        (new PhpmqTransport(self::NOWHERE))->publish('{}', 'orders');
    }

    public function testQueueThatCannotBeIsRefused(): void
    {
        $this->expectException(PhpmqException::class);
        (new PhpmqTransport(self::NOWHERE))->reserve('', 0.0);
    }

    public function testMissingBrokerIsSaid(): void
    {
        $this->expectException(ConnectionLost::class);
        (new PhpmqTransport(self::NOWHERE, timeout: 0.1))->reserve('orders', 0.0);
    }

    public function testMessageComesBackWithItsAttemptsAndDiesWithItsReason(): void
    {
        $address = getenv('PHPMQ_ADDRESS');
        if ($address === false) {
            $this->markTestSkipped('PHPMQ_ADDRESS is not set');
        }
        $queue = 'phpunit-' . bin2hex(random_bytes(4));
        $transport = new PhpmqTransport($address);
        $body = Envelope::make('urn:babel:users:registered', ['user_id' => 42], $queue);
        $this->assertSame(json_decode($body, true)['meta']['id'], $transport->publish($body, $queue));

        $first = $transport->reserve($queue);
        $this->assertSame($body, $first->rawBody());
        $this->assertSame('urn:babel:users:registered', $first->getUrn());
        $transport->release($first, Envelope::withAttempts($body, 1));

        $second = $transport->reserve($queue);
        $this->assertSame(1, $second->attempts());
        $block = json_encode(['attempts' => 1, 'dead_letter' => ['reason' => 'failed', 'error' => 'no']]);
        $transport->deadLetter($second, $block);

        $record = $transport->reserve("$queue.dlq");
        $this->assertSame('no', $record->envelope()['dead_letter']['error']);
        $transport->ack($record);
        $this->assertNull($transport->reserve($queue, 0.1));
        $transport->close();
    }
}
