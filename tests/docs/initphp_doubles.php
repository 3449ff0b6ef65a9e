<?php
/**
 * Stands in for Composer's autoloader: as much of InitPHP Queue and BabelQueue's SDK as the pages
 * use, and of each only what their documentation shows.
 */

declare(strict_types=1);

namespace {
    require_once __DIR__ . '/../clients/php/autoload.php'; // as phpmq-lite/client is installed
}

namespace BabelQueue\Contracts {
    interface PolyglotJob
    {
        public function getBabelUrn(): string;

        public function toPayload(): array;
    }

    interface HasTraceId
    {
        public function getBabelTraceId(): ?string;
    }
}

namespace BabelQueue\Codec {
    final class EnvelopeCodec
    {
        public static function make(string $urn, array $data = [], string $queue = 'default'): array
        {
            return [
                'job' => $urn,
                'trace_id' => self::uuid(),
                'data' => $data,
                'meta' => [
                    'id' => self::uuid(),
                    'queue' => $queue,
                    'lang' => 'php',
                    'schema_version' => 1,
                    'created_at' => (int) (microtime(true) * 1000),
                ],
                'attempts' => 0,
            ];
        }

        public static function encode(array $envelope): string
        {
            return json_encode($envelope, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES);
        }

        public static function decode(string $json): array
        {
            $decoded = json_decode($json, true);
            return is_array($decoded) ? $decoded : [];
        }

        public static function urn(array $envelope): string
        {
            return $envelope['job'] ?? $envelope['urn'] ?? '';
        }

        private static function uuid(): string
        {
            return vsprintf('%s%s-%s-4%.3s-a%.3s-%s%s%s', str_split(bin2hex(random_bytes(16)), 4));
        }
    }
}

namespace InitPHP\Queue\Producer {
    use BabelQueue\Codec\EnvelopeCodec;
    use BabelQueue\Contracts\HasTraceId;
    use BabelQueue\Contracts\PolyglotJob;
    use BabelQueue\Contracts\Transport;

    final class Producer
    {
        public function __construct(
            private readonly Transport $transport,
            private readonly string $defaultQueue = 'default',
        ) {
        }

        public function dispatch(PolyglotJob $job, ?string $queue = null): ?string
        {
            $queue ??= $this->defaultQueue;
            $envelope = EnvelopeCodec::make($job->getBabelUrn(), $job->toPayload(), $queue);
            if ($job instanceof HasTraceId && $job->getBabelTraceId() !== null) {
                $envelope['trace_id'] = $job->getBabelTraceId();
            }
            return $this->transport->publish(EnvelopeCodec::encode($envelope), $queue);
        }
    }
}

namespace InitPHP\Queue\Routing {
    final class HandlerMap
    {
        /** @var array<string, callable> */
        public array $handlers = [];

        public function register(string $urn, callable $handler): self
        {
            $this->handlers[$urn] = $handler;
            return $this;
        }
    }
}

namespace InitPHP\Queue\Consumer {
    use InitPHP\Queue\Contracts\ConsumerTransport;
    use InitPHP\Queue\Routing\HandlerMap;

    final class Dispatcher
    {
        public function __construct(public readonly HandlerMap $map)
        {
        }
    }

    final class WorkerOptions
    {
        public function __construct(
            public readonly int $maxAttempts = 3,
            public readonly array $backoff = [0],
            public readonly float $reserveTimeout = 5.0,
            public readonly float $sleepWhenEmpty = 0.5,
            public readonly int $maxJobs = 0,
            public readonly float $maxRuntime = 0.0,
            public readonly int $memoryLimitMb = 0,
            public readonly bool $stopWhenEmpty = false,
        ) {
        }
    }

    final class Worker
    {
        private bool $isStopping = false;

        /** @var callable */
        private $logger;

        public function __construct(
            private readonly ConsumerTransport $transport,
            private readonly Dispatcher $dispatcher,
            private readonly WorkerOptions $options = new WorkerOptions(),
            ?callable $logger = null,
        ) {
            $this->logger = $logger ?? fn () => null;
        }

        public function run(string $queue): void
        {
            pcntl_async_signals(true);
            pcntl_signal(SIGTERM, $this->stop(...));
            pcntl_signal(SIGINT, $this->stop(...));
            for ($jobs = 0; !$this->isStopping && ($this->options->maxJobs === 0 || $jobs < $this->options->maxJobs);) {
                if ($this->runOnce($queue)) {
                    $jobs++;
                } elseif ($this->options->stopWhenEmpty) {
                    break;
                }
            }
        }

        public function runOnce(string $queue): bool
        {
            $message = $this->transport->reserve($queue, $this->options->reserveTimeout);
            if ($message === null) {
                return false;
            }
            try {
                $this->dispatcher->map->handlers[$message->getUrn()]($message);
                $this->transport->ack($message);
                ($this->logger)('info', 'job.ack', ['queue' => $queue, 'urn' => $message->getUrn()]);
            } catch (\Throwable $error) {
                $attempts = $message->attempts() + 1;
                $envelope = ['attempts' => $attempts] + $message->envelope();
                $delays = $this->options->backoff;
                if ($attempts < $this->options->maxAttempts) {
                    $delay = $delays[min($attempts - 1, count($delays) - 1)];
                    $this->transport->release($message, json_encode($envelope), $delay);
                    ($this->logger)('warning', 'job.retry', ['queue' => $queue, 'delay' => $delay]);
                } else {
                    $envelope['dead_letter'] = ['reason' => 'failed', 'error' => $error->getMessage()];
                    $this->transport->deadLetter($message, json_encode($envelope));
                    ($this->logger)('error', 'job.dead_letter', ['queue' => $queue]);
                }
            }
            return true;
        }

        public function stop(): void
        {
            $this->isStopping = true;
        }
    }
}
