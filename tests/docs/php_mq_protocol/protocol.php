<?php
/**
 * Stands in for the newer revision of php-mq/protocol: the names that examples/php/newer uses, and
 * the bytes of the published examples.
 */

declare(strict_types=1);

namespace PHPMQ\Protocol\Interfaces {
    interface RepresentsString extends \JsonSerializable
    {
        public function toString(): string;

        public function __toString(): string;
    }

    interface IdentifiesQueue extends RepresentsString
    {
        public function equals(IdentifiesQueue $other): bool;
    }

    interface IdentifiesMessage extends RepresentsString
    {
        public function equals(IdentifiesMessage $other): bool;
    }
}

namespace PHPMQ\Protocol\Messages {
    use PHPMQ\Protocol\Interfaces\IdentifiesMessage;
    use PHPMQ\Protocol\Interfaces\IdentifiesQueue;

    final class ReQueue
    {
        public function __construct(
            private readonly IdentifiesQueue $queue,
            private readonly IdentifiesMessage $id,
            private readonly int $ttl,
        ) {
        }

        public function toString(): string
        {
            return vsprintf('H0100503P01%029d%sP03%029d%sP05%029d%s', [
                strlen((string) $this->queue), $this->queue, strlen((string) $this->id), $this->id,
                strlen((string) $this->ttl), $this->ttl,
            ]);
        }
    }

    final class DeadLetter
    {
        public function __construct(
            private readonly IdentifiesQueue $queue,
            private readonly IdentifiesMessage $id,
        ) {
        }

        public function toString(): string
        {
            return vsprintf('H0100602P01%029d%sP03%029d%s', [
                strlen((string) $this->queue), $this->queue, strlen((string) $this->id), $this->id,
            ]);
        }
    }
}
