<?php
/**
 * Consumes messages, shows each on a line of its own, and acknowledges it.
 *
 *     php consume.php 127.0.0.1:9100 orders 10
 *
 * Use port 9100 or 9102: the dispatches of the newer revision have a TTL packet, those of the older
 * do not, and the number of packets tells.
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
send($broker, CONSUME, [QUEUE => $queue, COUNT => '1']); // one at a time
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
