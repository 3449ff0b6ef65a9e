<?php

declare(strict_types=1);

namespace Phpmq;

/** Opens the stream of a connection; one time limit applies to all addresses of a name, and to TLS. */
final class Dialer
{
    public const NEXT_ADDRESS_S = 0.5; // an address that has not answered by then is raced by the next one
    /**
     * TCP options by system: a dead peer is noticed after 90 s without traffic (30 + 6 * 10), and after
     * 90 s with unacknowledged bytes, when there are no keep-alive probes.
     */
    private const OPTIONS = [
        'Linux' => [4 => 30, 5 => 10, 6 => 6, 18 => 90_000], // idle, interval, count, TCP_USER_TIMEOUT in ms
        'Darwin' => [0x10 => 30, 0x101 => 10, 0x102 => 6, 0x80 => 90], // the same; TCP_RXT_CONNDROPTIME in s
    ];
    private const TLS = [
        'tls' => STREAM_CRYPTO_METHOD_TLS_CLIENT,
        'ssl' => STREAM_CRYPTO_METHOD_TLS_CLIENT,
        'tlsv1.2' => STREAM_CRYPTO_METHOD_TLSv1_2_CLIENT,
        'tlsv1.3' => STREAM_CRYPTO_METHOD_TLSv1_3_CLIENT,
    ];

    private const NO_TLS = 'use HOST:PORT without tls://, or set tls_cert and tls_key of that listener';

    /** @var array<string, float> when an address last did not answer; these are tried last */
    private static array $silent = [];

    private readonly float $began;
    private ?string $why = null; // the first of several warnings names the cause, such as a certificate

    /**
     * @param array<string, mixed> $tls options of PHP's SSL context
     * @param float $timeout seconds for everything
     */
    public function __construct(
        private readonly string $address,
        private readonly array $tls,
        private readonly float $timeout,
        private readonly Interrupt $interrupt,
    ) {
        $this->began = Connection::now();
    }

    /**
     * @return resource a stream that does not block
     * @throws ConnectionLost
     */
    public function open()
    {
        set_error_handler(function (int $level, string $message): bool {
            $this->why ??= $message;
            return true;
        });
        try {
            $stream = $this->connect();
        } finally {
            restore_error_handler();
        }
        stream_set_blocking($stream, false);
        return $stream;
    }

    /** @return resource */
    private function connect()
    {
        if (preg_match('~^unix:(?://)?(.+)$~Ds', $this->address, $found) === 1) {
            $stream = stream_socket_client("unix://$found[1]", $code, $error, $this->timeout);
            $stream !== false ?: $this->fail($error);
            Descriptor::closeOnExec($stream);
            return $stream;
        }
        $form = '~^(?:(tcp|ssl|tls|tlsv1\.[23])://)?(\[[0-9a-f:.]+\]|[^:/]+):([0-9]+)/?$~Di';
        if (preg_match($form, $this->address, $found) !== 1) {
            $this->fail(
                'the address must be HOST:PORT, such as 127.0.0.1:9100, tls://HOST:PORT or unix:PATH',
                isPermanent: true,
            );
        }
        [, $scheme, $host, $port] = $found;
        if ((int) $port < 1 || (int) $port > 65_535) {
            $this->fail("the port is $port; it must be 1 to 65535", isPermanent: true);
        }
        $ip = $this->race($this->addresses($host), $port, $stream);
        $this->setOptions($stream);
        Descriptor::closeOnExec($stream);
        $method = self::TLS[strtolower($scheme)] ?? null;
        if ($method !== null) {
            $this->encrypt($stream, $this->tls + ['peer_name' => trim($host, '[]')], $method, $ip);
        }
        return $stream;
    }

    /** @return list<string> addresses of a name, those that did not answer last */
    private function addresses(string $host): array
    {
        $found = [];
        if ($host[0] === '[' || filter_var($host, FILTER_VALIDATE_IP) !== false) {
            $found[] = $host;
        } elseif (function_exists('socket_addrinfo_lookup')) {
            foreach (socket_addrinfo_lookup($host, '0', ['ai_socktype' => SOCK_STREAM]) ?: [] as $entry) {
                $place = socket_addrinfo_explain($entry)['ai_addr'];
                $found[] = $place['sin_addr'] ?? "[{$place['sin6_addr']}]";
            }
        } else {
            $found = gethostbynamel($host) ?: []; // IPv4 only
        }
        $found = array_values(array_unique($found));
        $found !== [] ?: $this->fail("the name $host is unknown; check the address", isPermanent: true);
        usort($found, fn (string $a, string $b): int => (self::$silent[$a] ?? 0) <=> (self::$silent[$b] ?? 0));
        return $found;
    }

    /**
     * Connects to the first address that answers; sets $winner and returns the address.
     *
     * @param list<string> $waiting addresses
     * @param resource $winner
     */
    private function race(array $waiting, string $port, &$winner): string
    {
        $flags = STREAM_CLIENT_CONNECT | STREAM_CLIENT_ASYNC_CONNECT;
        $begun = []; // streams by address
        for ($next = 0.0; $winner === null;) {
            if (($now = Connection::now()) >= $this->until()) {
                break;
            }
            if ($waiting !== [] && ($begun === [] || $now >= $next)) {
                $ip = array_shift($waiting);
                $context = stream_context_create(['socket' => ['tcp_nodelay' => true]]);
                $stream = stream_socket_client("tcp://$ip:$port", $code, $error, $this->timeout, $flags, $context);
                $next = $now + self::NEXT_ADDRESS_S;
                if ($stream === false) {
                    self::$silent[$ip] = $now;
                    $this->why ??= $error;
                    continue;
                }
                $begun[$ip] = $stream;
            } elseif ($begun === []) {
                break; // every address has failed
            }
            foreach ($this->select($begun, $waiting === [] ? INF : $next) as $ip => $stream) {
                if (stream_socket_get_name($stream, true) !== false) {
                    [$winner, $answered] = [$stream, $ip];
                    unset($begun[$ip]);
                    break;
                }
                $this->why = self::errorOf($stream);
                self::$silent[$ip] = Connection::now();
                fclose($stream);
                unset($begun[$ip]);
            }
        }
        foreach ($begun as $ip => $stream) {
            if (!$this->interrupt->isSet()) { // otherwise, it had no time to answer
                self::$silent[$ip] = Connection::now();
            }
            fclose($stream);
        }
        if ($winner === null) {
            $this->fail($begun === [] ? 'no connection' : "no answer within $this->timeout s");
        }
        unset(self::$silent[$answered]);
        return $answered;
    }

    private function until(): float
    {
        return min($this->began + $this->timeout, $this->interrupt->limit($this->began));
    }

    /**
     * Waits until the time, a signal or an event; returns the streams that are connected or have failed.
     *
     * @param array<string, resource> $streams
     * @return array<string, resource>
     */
    private function select(array $streams, float $until = INF, bool $isReading = false): array
    {
        [$read, $write, $except] = $isReading ? [$streams, null, null] : [null, $streams, $streams];
        $left = max(0.0, min($until - Connection::now(), $this->until() - Connection::now(), 1.0));
        $count = @stream_select($read, $write, $except, 0, (int) ($left * 1e6));
        return $count === false ? [] : ($write ?? []) + ($except ?? []);
    }

    /** @param resource $stream */
    private static function errorOf($stream): string
    {
        if (!function_exists('socket_import_stream')) {
            return 'could not connect';
        }
        return socket_strerror((int) socket_get_option(socket_import_stream($stream), SOL_SOCKET, SO_ERROR));
    }

    /** @param resource $stream before TLS, because later ext-sockets does not accept it */
    private function setOptions($stream): void
    {
        if (function_exists('socket_import_stream')) {
            $socket = socket_import_stream($stream);
            socket_set_option($socket, SOL_SOCKET, SO_KEEPALIVE, 1);
            foreach (self::OPTIONS[PHP_OS_FAMILY] ?? [] as $option => $value) {
                socket_set_option($socket, SOL_TCP, $option, $value);
            }
        }
    }

    /**
     * @param resource $stream
     * @param array<string, mixed> $options
     */
    private function encrypt($stream, array $options, int $method, string $ip): void
    {
        stream_set_blocking($stream, false);
        stream_context_set_option($stream, ['ssl' => $options]);
        for ($method = $options['crypto_method'] ?? $method; ; ) {
            $is = stream_socket_enable_crypto($stream, true, $method);
            if ($is === true) {
                return;
            }
            if ($is === false || Connection::now() >= $this->until()) {
                self::$silent[$ip] = Connection::now();
                fclose($stream);
                if (str_contains($this->why ?? '', 'reset by peer')) {
                    $this->why = null; // a server that ends while our bytes are under way resets, which is the same
                }
                $this->fail($is === false ? 'the server ended the TLS handshake' : "no TLS connection within $this->timeout s");
            }
            $this->select([$stream], isReading: true);
        }
    }

    private function fail(string $otherwise, bool $isPermanent = false): never
    {
        $why = $isPermanent ? $otherwise : $this->why ?? ($otherwise !== '' ? $otherwise : 'no connection');
        [$remedy, $mayStart] = $isPermanent ? ['', false] : self::remedy($why);
        $why = preg_replace(['/^stream_socket_\w+\(\): /', '/\s+/'], ['', ' '], $why . $remedy);
        throw $isPermanent || $remedy !== ''
            ? new NotConnected("$this->address: $why", $mayStart) : new ConnectionLost("$this->address: $why");
    }

    /** @return array{string, bool} what to do if another attempt would fail, too; whether a worker waits for it */
    private static function remedy(string $why): array
    {
        $remedies = [
            'certificate verify failed' => "name the certificate authority with tls: ['cafile' => FILE]",
            'cafile stream' => "correct the file in tls: ['cafile' => FILE], which must contain PEM certificates",
            'Unable to set' => "correct local_cert and local_pk in tls, which must be PEM files of one certificate",
            'did not match expected' => "connect with a name of the certificate, or pass tls: ['peer_name' => NAME]",
            'wrong version number' => 'it does not use TLS: ' . self::NO_TLS,
            'Permission denied' => 'let the user of this process open that socket',
        ];
        $startable = [ // once a broker has been started there
            'ended the TLS handshake' => 'it may not allow this address (tcp.allow), or not use TLS: then ' . self::NO_TLS,
            'Connection refused' => 'no broker listens there: start it, or correct the port',
            'No such file or directory' => 'no broker listens there: start it, or correct the path',
        ];
        foreach ($remedies + $startable as $part => $remedy) {
            if (str_contains($why, $part)) {
                return ["; $remedy", isset($startable[$part])];
            }
        }
        return ['', false];
    }
}
