<?php
/** Handlers by URN. Returning acknowledges the message; an exception retries it. */

declare(strict_types=1);

use InitPHP\Queue\Message\ReceivedMessage;

return [
    'urn:babel:orders:created' => function (array $data, array $meta, ReceivedMessage $message): void {
        echo json_encode(['order' => $data, 'attempts' => $message->attempts()]), "\n";
    },
];
