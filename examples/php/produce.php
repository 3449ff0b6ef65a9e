<?php
/**
 * Publishes one envelope and prints its meta.id once it is on the broker's disk.
 *
 *     php produce.php 127.0.0.1:9100 orders urn:babel:orders:created '{"order_id": 1042}' [TRACE]
 */

declare(strict_types=1);

require __DIR__ . '/bootstrap.php';

use Phpmq\Envelope;
use Phpmq\PhpmqException;
use Phpmq\PhpmqTransport;

if ($argc < 4) {
    fwrite(STDERR, "usage: php produce.php ADDRESS QUEUE URN [DATA [TRACE]]\n");
    exit(2);
}
[, $address, $queue, $urn] = $argv;

try {
    $data = json_decode($argv[4] ?? '{}', false, 250, JSON_THROW_ON_ERROR); // as objects, so that {} stays {}
    if (!is_object($data) && $data !== []) {
        throw new JsonException('DATA must be a JSON object');
    }
    $transport = new PhpmqTransport($address);
    echo $transport->publish(Envelope::make($urn, $data, $queue, $argv[5] ?? null), $queue), "\n";
    $transport->close();
} catch (PhpmqException | JsonException $error) {
    fwrite(STDERR, $error->getMessage() . "\n");
    exit(1);
}
