<?php
/**
 * PHPMQ without a library: messages as bytes over a plain stream.
 *
 * A message is a header of 8 bytes (H, version, type, number of packets) followed by its packets. A
 * packet is a header of 32 bytes (P, type, length of the content) followed by the content.
 */

declare(strict_types=1);

const QUEUE = '01';
const CONTENT = '02';
const ID = '03';
const COUNT = '04';
const TTL = '05';

const PUBLISH = '001';
const CONSUME = '002';
const DISPATCH = '003';
const ACKNOWLEDGE = '004';
const RECEIPT = '007';

/** @return resource */
function connect(string $address)
{
    $broker = stream_socket_client("tcp://$address", $code, $error, 5);
    if ($broker === false) {
        throw new RuntimeException("$address: $error");
    }
    return $broker;
}

/** @param array<string, string> $packets contents by packet type */
function send($broker, string $type, array $packets): void
{
    $message = sprintf('H01%s%02d', $type, count($packets));
    foreach ($packets as $packet => $content) {
        $message .= sprintf('P%s%029d%s', $packet, strlen($content), $content);
    }
    for ($sent = 0; $sent < strlen($message); $sent += $written) {
        $written = fwrite($broker, substr($message, $sent));
        if (!$written) {
            throw new RuntimeException('the broker closed the connection');
        }
    }
}

/** @return array{string, array<string, string>} message type, and contents by packet type */
function receive($broker): array
{
    $header = read($broker, 8);
    $packets = [];
    for ($left = (int) substr($header, 6, 2); $left > 0; $left--) {
        $packet = read($broker, 32);
        $packets[substr($packet, 1, 2)] = read($broker, (int) substr($packet, 3));
    }
    return [substr($header, 3, 3), $packets];
}

/** Reads exactly $length bytes, because one fread may return fewer bytes than requested. */
function read($broker, int $length): string
{
    $bytes = '';
    while (strlen($bytes) < $length) {
        $part = fread($broker, $length - strlen($bytes));
        if ($part === false || $part === '') {
            throw new RuntimeException('the broker closed the connection or did not answer in time');
        }
        $bytes .= $part;
    }
    return $bytes;
}
