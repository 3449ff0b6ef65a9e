<?php
/**
 * Stands in for Composer's autoloader: as much of InitPHP Queue as the page uses, written after what
 * its documentation says a worker does with a transport.
 */

declare(strict_types=1);

namespace {
    require_once __DIR__ . '/../examples/php/contracts.php';
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
            public readonly array $backoff = [0],
            public readonly float $sleepWhenEmpty = 0.5,
            public readonly bool $stopWhenEmpty = false,
        ) {
        }
    }

    final class Worker
    {
        public function __construct(
            private readonly ConsumerTransport $transport,
            private readonly Dispatcher $dispatcher,
            private readonly WorkerOptions $options = new WorkerOptions(),
        ) {
        }

        public function run(string $queue): void
        {
            while (($message = $this->transport->reserve($queue, 0.5)) !== null) {
                $handler = $this->dispatcher->map->handlers[$message->getUrn()];
                $handler($message);
                $this->transport->ack($message);
            }
        }
    }
}
