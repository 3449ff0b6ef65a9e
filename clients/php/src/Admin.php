<?php

declare(strict_types=1);

namespace Phpmq;

/**
 * Cancels and reschedules messages by their unique keys, over the broker's HTTP API.
 *
 *     $admin = new Phpmq\Admin('http://127.0.0.1:9101', token: 'phpmq_…'); // without a token if there are no users
 *     $admin->reschedule('mails', 'digest-7', delay: 600);
 *     $admin->cancel('mails', 'digest-7');
 */
final class Admin
{
    /**
     * @param string $url of the admin, with its base path if it has one
     * @param string|null $token of a user who may operate the queues
     * @param array<string, mixed> $tls options of PHP's SSL context: cafile, local_cert, local_pk …
     * @param float $timeout seconds
     */
    public function __construct(
        private readonly string $url = 'http://127.0.0.1:9101',
        private readonly ?string $token = null,
        private readonly array $tls = [],
        private readonly float $timeout = 10.0,
    ) {
        if (preg_match('~^https?://[^\s/]+(/\S*)?$~D', $url) !== 1) {
            throw new PhpmqException("the URL is $url; it must begin with http:// or https://, as the admin's");
        }
    }

    /**
     * Deletes the live message with a unique key; returns whether there was one.
     *
     * @throws PhpmqException nothing was changed, because a consumer holds it, or the broker refuses this user
     * @throws ConnectionLost the message may or may not be deleted
     */
    public function cancel(string $queue, string $uniqueKey): bool
    {
        return $this->post($queue, 'cancel', ['unique_key' => $uniqueKey]);
    }

    /**
     * Sets when the live message with a unique key is ready: now, after a delay, or at a date; returns whether
     * there was one.
     *
     * @param int|float $delay seconds
     * @throws PhpmqException nothing was changed, because a consumer holds it, or the broker refuses this user
     * @throws ConnectionLost the message may or may not be changed
     */
    public function reschedule(
        string $queue,
        string $uniqueKey,
        int|float $delay = 0,
        ?\DateTimeInterface $deliverAt = null,
    ): bool {
        PublishOptions::checkSeconds('delay', $delay);
        $form = ['unique_key' => $uniqueKey];
        if ($deliverAt !== null) {
            $form['deliver_at'] = (int) $deliverAt->format('Uv');
        }
        if ($deliverAt === null || $delay > 0) {
            $form['delay_s'] = max($delay, 0.001); // a date would depend on the clock of this machine
        }
        return $this->post($queue, 'reschedule', $form);
    }

    /** @param array<string, mixed> $form */
    private function post(string $queue, string $action, array $form): bool
    {
        Client::checkQueue($queue);
        $name = str_starts_with($queue, '~') || trim($queue, '.') === '' ? "~$queue" : $queue; // as the broker escapes it
        $headers = ['Content-Type: application/json', 'Connection: close'];
        $http = [
            'method' => 'POST', 'content' => Json::options($form), 'timeout' => $this->timeout, 'ignore_errors' => true,
            'header' => $this->token === null ? $headers : [...$headers, "Authorization: Bearer $this->token"],
            'follow_location' => 0,
        ];
        $address = rtrim($this->url, '/') . '/api/v1/queues/' . rawurlencode($name) . "/$action";
        $context = stream_context_create(['http' => $http, 'ssl' => $this->tls]);
        $answer = @file_get_contents($address, false, $context);
        if ($answer === false) {
            $why = preg_replace('/^.*: /s', '', error_get_last()['message'] ?? 'no answer');
            throw new ConnectionLost("$this->url: $why");
        }
        preg_match('~^HTTP/\S+ (\d+)~', $http_response_header[0] ?? '', $status);
        $problem = json_decode($answer, true);
        if (($status[1] ?? '') === '200') {
            return true;
        }
        if (in_array($problem['code'] ?? '', ['unknown_unique_key', 'unknown_queue'], true)) {
            return false;
        }
        $detail = $problem['detail'] ?? 'it answered ' . ($status[1] ?? 'without HTTP') . ', and is no admin of a broker';
        throw new PhpmqException("$this->url: $detail");
    }
}
