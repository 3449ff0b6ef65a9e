<?php
/**
 * Publishes one message with the published client, php-mq/client.
 *
 *     composer install
 *     php send.php 127.0.0.1 9102 orders '{"order_id": 1042}'
 */

declare(strict_types=1);

require __DIR__ . '/vendor/autoload.php';

use PHPMQ\Client\Client;
use PHPMQ\Client\Sockets\ClientSocket;
use PHPMQ\Client\Sockets\Types\NetworkSocket;
use PHPMQ\Client\Types\QueueName;

if ($argc !== 5) {
    fwrite(STDERR, "usage: php send.php HOST PORT QUEUE CONTENT\n");
    exit(2);
}
[, $host, $port, $queue, $content] = $argv;

$client = new Client(new ClientSocket(new NetworkSocket($host, (int) $port)));
$client->sendMessage(new QueueName($queue), $content); // no receipt, because the client does not support receipts
$client->disconnect();
