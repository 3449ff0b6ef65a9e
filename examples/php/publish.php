<?php
/**
 * Publishes one message.
 *
 *     php publish.php 127.0.0.1:9102 orders '{"order_id": 1042}'         the older revision, no TTL
 *     php publish.php 127.0.0.1:9100 orders '{"order_id": 1042}' 3600    expires after an hour
 *     php publish.php 127.0.0.1:9100 orders '{"order_id": 1042}' 0 my-key    waits for the receipt
 *
 * With a key, the broker answers once the message is on its disk. If there is no answer, publish the
 * message again with the same key; it is stored only once.
 */

declare(strict_types=1);

require __DIR__ . '/phpmq.php';

if ($argc < 4) {
    fwrite(STDERR, "usage: php publish.php HOST:PORT QUEUE CONTENT [TTL [KEY]]\n");
    exit(2);
}
[, $address, $queue, $content] = $argv;
$ttl = $argv[4] ?? null;
$key = $argv[5] ?? null;

$packets = [QUEUE => $queue, CONTENT => $content];
if ($ttl !== null) {
    $packets[TTL] = $ttl;
}
if ($key !== null) {
    $packets[ID] = $key;
}
$broker = connect($address);
send($broker, PUBLISH, $packets);
if ($key !== null) {
    [$type, $answer] = receive($broker);
    if ($type !== RECEIPT || isset($answer[CONTENT])) {
        fwrite(STDERR, 'refused: ' . ($answer[CONTENT] ?? 'no receipt') . "\n");
        exit(1);
    }
    echo "stored\n";
}
fclose($broker);
