<?php
/**
 * Handles a number of messages with the published client, php-mq/client, and exits.
 *
 *     composer install
 *     php receive.php 127.0.0.1 9102 orders 10
 *
 * If a handler throws, the message returns to its position when the program exits; after 20 such exits,
 * the broker dead-letters it. pushBackMessage() adds a copy to the end of the queue instead.
 */

declare(strict_types=1);

require __DIR__ . '/vendor/autoload.php';

use PHPMQ\Client\Client;
use PHPMQ\Client\Sockets\ClientSocket;
use PHPMQ\Client\Sockets\Types\NetworkSocket;
use PHPMQ\Client\Types\QueueName;
use PHPMQ\Protocol\Messages\MessageServerToClient;

if ($argc < 4) {
    fwrite(STDERR, "usage: php receive.php HOST PORT QUEUE [MESSAGES]\n");
    exit(2);
}
[, $host, $port, $queue] = $argv;
$left = (int) ($argv[4] ?? 1);

$client = new Client(new ClientSocket(new NetworkSocket($host, (int) $port)));
$client->requestMessages(new QueueName($queue), 5); // at most 5 unacknowledged messages
$client->registerMessageHandlers(
    function (MessageServerToClient $message, Client $client) use (&$left): void {
        if ($left-- > 0) { // any further messages return to the queue when we disconnect
            echo $message->getContent(), "\n";
            $client->acknowledgeMessage($message->getQueueName(), $message->getMessageId());
        }
        if ($left <= 0) {
            $client->stopHandlingMessages();
        }
    },
);
$client->handleMessages();
$client->disconnect();
