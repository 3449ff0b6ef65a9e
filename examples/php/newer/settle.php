<?php
/**
 * Settles messages with the newer revision's classes in php-mq/protocol, ReQueue and DeadLetter.
 *
 *     composer install
 *     php settle.php 127.0.0.1:9100 orders
 *
 * Use port 9100, whose dispatches have the TTL packet. The first message is requeued with a TTL of an
 * hour; the second message is dead-lettered. The package has message classes for the newer revision
 * but no connection, so this example uses the connection of phpmq-lite/client.
 */

declare(strict_types=1);

require __DIR__ . '/vendor/autoload.php';

use Phpmq\Connection;
use PHPMQ\Protocol\Interfaces\IdentifiesMessage;
use PHPMQ\Protocol\Interfaces\IdentifiesQueue;
use PHPMQ\Protocol\Messages\DeadLetter;
use PHPMQ\Protocol\Messages\ReQueue;

final class QueueName implements IdentifiesQueue
{
    public function __construct(private readonly string $name)
    {
    }

    public function toString(): string
    {
        return $this->name;
    }

    public function __toString(): string
    {
        return $this->name;
    }

    public function jsonSerialize(): string
    {
        return $this->name;
    }

    public function equals(IdentifiesQueue $other): bool
    {
        return $other->toString() === $this->name;
    }
}

final class MessageId implements IdentifiesMessage
{
    public function __construct(private readonly string $id)
    {
    }

    public function toString(): string
    {
        return $this->id;
    }

    public function __toString(): string
    {
        return $this->id;
    }

    public function jsonSerialize(): string
    {
        return $this->id;
    }

    public function equals(IdentifiesMessage $other): bool
    {
        return $other->toString() === $this->id;
    }
}

if ($argc !== 3) {
    fwrite(STDERR, "usage: php settle.php HOST:PORT QUEUE\n");
    exit(2);
}
[, $address, $queue] = $argv;

$broker = new Connection($address);
$broker->open($queue, 2); // credit for two unacknowledged messages
foreach ([3600, null] as $ttl) {
    $until = Connection::now() + 10;
    while (($message = $broker->take($queue)) === null) {
        if (!$broker->wait($until) && Connection::now() >= $until) {
            fwrite(STDERR, "no message arrived within 10 s\n");
            exit(1);
        }
    }
    $name = new QueueName($queue);
    $id = new MessageId($message->id);
    $end = $ttl === null ? new DeadLetter($name, $id) : new ReQueue($name, $id, $ttl);
    $broker->write($end->toString());
    echo $ttl === null ? 'dead letter: ' : 'requeued: ', $message->content, "\n";
}
$broker->close();
