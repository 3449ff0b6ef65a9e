<?php
/**
 * The two interfaces that PhpmqTransport implements and the class that it returns, for programs that
 * do not load them through Composer. If you use Composer's autoloader, load it first: names that are
 * already declared are skipped.
 */

declare(strict_types=1);

namespace BabelQueue\Contracts {
    if (!interface_exists(Transport::class)) {
        /** babelqueue/php-sdk: publishes an encoded envelope. */
        interface Transport
        {
            public function publish(string $payload, ?string $queue = null): ?string;
        }
    }

    if (!interface_exists(InboundMessage::class)) {
        /** babelqueue/php-sdk: the view of an envelope that a handler gets. */
        interface InboundMessage
        {
            public function getUrn(): string;

            public function getTraceId(): string;

            /** @return array<string, mixed> */
            public function getData(): array;

            /** @return array<string, mixed> */
            public function getMeta(): array;
        }
    }
}

namespace InitPHP\Queue\Message {
    if (!class_exists(ReceivedMessage::class)) {
        /** initphp/queue: a message that was reserved. */
        final class ReceivedMessage implements \BabelQueue\Contracts\InboundMessage
        {
            /**
             * @param array<string, mixed> $envelope empty if the body is malformed
             * @param mixed $receipt only for the transport
             */
            public function __construct(
                private readonly string $queue,
                private readonly string $rawBody,
                private readonly array $envelope,
                private readonly mixed $receipt,
            ) {
            }

            public function getUrn(): string
            {
                return $this->envelope['job'] ?? '';
            }

            public function getTraceId(): string
            {
                return $this->envelope['trace_id'] ?? '';
            }

            public function getData(): array
            {
                return $this->envelope['data'] ?? [];
            }

            public function getMeta(): array
            {
                return $this->envelope['meta'] ?? [];
            }

            public function queue(): string
            {
                return $this->queue;
            }

            public function rawBody(): string
            {
                return $this->rawBody;
            }

            /** @return array<string, mixed> */
            public function envelope(): array
            {
                return $this->envelope;
            }

            public function attempts(): int
            {
                return $this->envelope['attempts'] ?? 0;
            }

            public function receipt(): mixed
            {
                return $this->receipt;
            }
        }
    }
}

namespace InitPHP\Queue\Contracts {
    use InitPHP\Queue\Message\ReceivedMessage;

    if (!interface_exists(ConsumerTransport::class)) {
        /** initphp/queue: reserves and settles messages. */
        interface ConsumerTransport
        {
            public function reserve(string $queue, float $timeout = 5.0): ?ReceivedMessage;

            public function ack(ReceivedMessage $message): void;

            public function release(ReceivedMessage $message, string $payload, int $delaySeconds = 0): void;

            public function deadLetter(ReceivedMessage $message, string $payload): void;
        }
    }
}
