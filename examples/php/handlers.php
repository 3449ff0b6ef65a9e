<?php
/** Handlers by URN: who returns has done it, who throws wants another try. */

declare(strict_types=1);

use InitPHP\Queue\Message\ReceivedMessage;

return [
    'urn:babel:orders:created' => function (array $data, array $meta, ReceivedMessage $message): void {
        echo json_encode(['order' => $data, 'attempts' => $message->attempts()]), "\n";
    },
];
