<?php
/**
 * Handles messages with the published client, php-mq/client, and ends after so many.
 *
 *     composer install
 *     php receive.php 127.0.0.1 9102 orders 10
 *
 * What throws goes back to its place when the program ends; after 20 such ends the broker makes it
 * a dead letter. pushBackMessage() puts a copy at the end of the queue instead.
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
$client->requestMessages(new QueueName($queue), 5); // so many unacknowledged at a time
$client->registerMessageHandlers(
    function (MessageServerToClient $message, Client $client) use (&$left): void {
        if ($left-- > 0) { // what came with the last one goes back when we disconnect
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
