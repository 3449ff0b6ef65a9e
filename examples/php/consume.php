<?php
/**
 * Consumes messages, prints each of them on its own line, and acknowledges it.
 *
 *     php consume.php 127.0.0.1:9100 orders 10
 *
 * Both port 9100 and port 9102 work: only dispatches of the newer revision have a TTL packet, and
 * the header gives the number of packets.
 */

declare(strict_types=1);

require __DIR__ . '/phpmq.php';

if ($argc < 3) {
    fwrite(STDERR, "usage: php consume.php HOST:PORT QUEUE [MESSAGES]\n");
    exit(2);
}
[, $address, $queue] = $argv;
$messages = (int) ($argv[3] ?? 1);

$broker = connect($address);
stream_set_timeout($broker, 60);
send($broker, CONSUME, [QUEUE => $queue, COUNT => '1']); // one message at a time
for (; $messages > 0; $messages--) {
    [$type, $message] = receive($broker);
    if ($type !== DISPATCH) {
        continue;
    }
    $ttl = (int) ($message[TTL] ?? 0);
    echo $message[CONTENT], $ttl > 0 ? "  ($ttl s left)" : '', "\n";
    send($broker, ACKNOWLEDGE, [QUEUE => $queue, ID => $message[ID]]);
}
fclose($broker);
