<?php
/**
 * Stands in for php-mq/client and its packages, which Composer would bring: the names and calls of
 * examples/php/published, and the bytes of the older revision (three packets in a dispatch).
 */

declare(strict_types=1);

namespace PHPMQ\Client\Types {
    final class QueueName
    {
        public function __construct(private string $name) {}

        public function toString(): string
        {
            return $this->name;
        }
    }

    final class MessageId
    {
        public function __construct(private string $id) {}

        public function toString(): string
        {
            return $this->id;
        }
    }
}

namespace PHPMQ\Client\Sockets\Types {
    final class NetworkSocket
    {
        public function __construct(private string $ipAddress, private int $port) {}

        public function getSocketAddress(): string
        {
            return "tcp://$this->ipAddress:$this->port";
        }
    }
}

namespace PHPMQ\Client\Sockets {
    final class ClientSocket
    {
        public function __construct(public readonly Types\NetworkSocket $address) {}
    }
}

namespace PHPMQ\Protocol\Messages {
    use PHPMQ\Client\Types\MessageId;
    use PHPMQ\Client\Types\QueueName;

    final class MessageServerToClient
    {
        public function __construct(
            private MessageId $id, private QueueName $queue, private string $content
        ) {}

        public function getMessageId(): MessageId
        {
            return $this->id;
        }

        public function getQueueName(): QueueName
        {
            return $this->queue;
        }

        public function getContent(): string
        {
            return $this->content;
        }
    }
}

namespace PHPMQ\Client {
    use PHPMQ\Client\Types\MessageId;
    use PHPMQ\Client\Types\QueueName;
    use PHPMQ\Protocol\Messages\MessageServerToClient;

    final class Client
    {
        /** @var resource */
        private $stream;

        private array $handlers = [];
        private bool $isHandling = false;

        public function __construct(Sockets\ClientSocket $socket)
        {
            $this->stream = stream_socket_client($socket->address->getSocketAddress());
        }

        public function sendMessage(QueueName $queue, string $content): void
        {
            $this->send('H0100102', ['01' => $queue->toString(), '02' => $content]);
        }

        public function requestMessages(QueueName $queue, int $amount): void
        {
            $this->send('H0100202', ['01' => $queue->toString(), '04' => (string) $amount]);
        }

        public function acknowledgeMessage(QueueName $queue, MessageId $id): void
        {
            $this->send('H0100402', ['01' => $queue->toString(), '03' => $id->toString()]);
        }

        public function registerMessageHandlers(callable ...$handlers): void
        {
            $this->handlers = array_merge($this->handlers, $handlers);
        }

        public function handleMessages(): void
        {
            for ($this->isHandling = true; $this->isHandling;) {
                $header = stream_get_contents($this->stream, 8);
                if ($header !== 'H0100303') {
                    throw new \UnexpectedValueException("no dispatch of the older revision: $header");
                }
                $packets = [];
                for ($left = 3; $left > 0; $left--) {
                    $head = stream_get_contents($this->stream, 32);
                    $length = (int) substr($head, 3);
                    $packets[substr($head, 1, 2)] = stream_get_contents($this->stream, $length);
                }
                $message = new MessageServerToClient(
                    new MessageId($packets['03']), new QueueName($packets['01']), $packets['02']
                );
                foreach ($this->handlers as $handler) {
                    $handler($message, $this);
                }
            }
        }

        public function stopHandlingMessages(): void
        {
            $this->isHandling = false;
        }

        public function disconnect(): void
        {
            stream_socket_shutdown($this->stream, STREAM_SHUT_RDWR);
            fclose($this->stream);
        }

        private function send(string $header, array $packets): void
        {
            foreach ($packets as $type => $content) {
                $header .= sprintf('P%s%029d%s', $type, strlen($content), $content);
            }
            fwrite($this->stream, $header);
        }
    }
}
