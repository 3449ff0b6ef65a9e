<?php
/**
 * Runs handlers: acknowledges each message, retries it later, or dead-letters it.
 *
 *     php worker.php --handlers=handlers.php 127.0.0.1:9100 orders
 *
 * Options: --max-attempts=3, --delays=1,5,15 (seconds; the last one repeats), --timeout=5 (seconds per
 * reserve), --max-jobs=N, --stop-when-empty. The worker logs one line of JSON per message to standard
 * error. With pcntl, SIGTERM and SIGINT stop it after the current message.
 */

declare(strict_types=1);

require __DIR__ . '/autoload.php';

use InitPHP\Queue\Message\ReceivedMessage;
use Phpmq\Envelope;
use Phpmq\PhpmqException;
use Phpmq\PhpmqTransport;

final class Worker
{
    private bool $isStopping = false;

    /**
     * @param array<string, callable> $handlers by URN
     * @param non-empty-list<int> $delays
     */
    public function __construct(
        private readonly PhpmqTransport $transport,
        private readonly array $handlers,
        private readonly int $maxAttempts,
        private readonly array $delays,
        private readonly float $timeout,
        private readonly int $maxJobs,
        private readonly bool $stopsWhenEmpty,
    ) {
        if (function_exists('pcntl_async_signals')) {
            pcntl_async_signals(true);
            pcntl_signal(SIGTERM, $this->stop(...));
            pcntl_signal(SIGINT, $this->stop(...));
        }
    }

    public function run(string $queue): void
    {
        $isAway = false;
        for ($jobs = 0; !$this->isStopping && ($this->maxJobs === 0 || $jobs < $this->maxJobs);) {
            try {
                $message = $this->transport->reserve($queue, $this->timeout);
                if ($isAway) {
                    $this->log('transport.back', ['queue' => $queue]);
                }
                $isAway = false;
                if ($message === null && $this->stopsWhenEmpty) {
                    break;
                }
                if ($message !== null) {
                    $jobs++;
                    $this->process($message);
                }
            } catch (PhpmqException $error) { // the broker requeues the message
                if (!$isAway) {
                    $this->log('transport.failed', ['queue' => $queue, 'error' => $error->getMessage()]);
                }
                $isAway = true; // logged once
                usleep(100_000);
            }
        }
        $this->transport->close();
    }

    private function stop(): void
    {
        $this->isStopping = true;
        $this->transport->interrupt();
    }

    private function process(ReceivedMessage $message): void
    {
        $reason = 'failed';
        try {
            if (Envelope::problem($message->rawBody()) !== null) {
                $this->transport->deadLetter($message, $message->rawBody()); // the transport adds the reason
                $this->log('job.dead_letter', $this->about($message) + ['reason' => 'poison']);
                return;
            }
            $handler = $this->handlers[$message->getUrn()] ?? null;
            if ($handler === null) {
                $reason = 'unknown_urn';
                throw new UnexpectedValueException("no handler for {$message->getUrn()}");
            }
            $handler($message->getData(), $message->getMeta(), $message);
        } catch (PhpmqException $error) {
            throw $error;
        } catch (Throwable $error) {
            $this->fail($message, $reason, $error);
            return;
        }
        $this->transport->ack($message);
        $this->log('job.ack', $this->about($message));
    }

    private function fail(ReceivedMessage $message, string $reason, Throwable $error): void
    {
        $attempts = $message->attempts() + 1;
        $about = $this->about($message) + ['attempt' => $attempts, 'error' => $error->getMessage()];
        if ($attempts >= $this->maxAttempts) {
            $block = [
                'reason' => $reason, 'error' => $error->getMessage(), 'exception' => $error::class,
                'attempts' => $attempts,
            ];
            $payload = ['attempts' => $attempts, 'dead_letter' => $block];
            $payload = json_encode($payload, JSON_INVALID_UTF8_SUBSTITUTE);
            $this->transport->deadLetter($message, $payload); // all other bytes are the original ones
            $this->log('job.dead_letter', $about + ['reason' => $reason]);
            return;
        }
        $delay = $this->delays[min($attempts, count($this->delays)) - 1];
        $body = $message->rawBody();
        $this->transport->release($message, Envelope::withAttempts($body, $attempts) ?? $body, $delay);
        $this->log('job.retry', $about + ['delay' => $delay]);
    }

    /** @return array<string, mixed> */
    private function about(ReceivedMessage $message): array
    {
        return [
            'queue' => $message->queue(), 'urn' => $message->getUrn(),
            'trace_id' => $message->getTraceId(),
        ];
    }

    /** @param array<string, mixed> $context */
    private function log(string $event, array $context): void
    {
        $flags = JSON_INVALID_UTF8_SUBSTITUTE | JSON_UNESCAPED_SLASHES;
        fwrite(STDERR, json_encode(['event' => $event] + $context, $flags) . "\n");
    }
}

$names = ['handlers:', 'max-attempts:', 'delays:', 'timeout:', 'max-jobs:', 'stop-when-empty'];
$options = getopt('', $names, $rest);
if ($argc - $rest !== 2) {
    fwrite(STDERR, "usage: php worker.php [OPTIONS] ADDRESS QUEUE\n");
    exit(2);
}
(new Worker(
    new PhpmqTransport($argv[$rest]),
    require realpath($options['handlers'] ?? __DIR__ . '/handlers.php'),
    (int) ($options['max-attempts'] ?? 3),
    array_map(intval(...), explode(',', $options['delays'] ?? '1,5,15')),
    (float) ($options['timeout'] ?? 5),
    (int) ($options['max-jobs'] ?? 0),
    isset($options['stop-when-empty']),
))->run($argv[$rest + 1]);
