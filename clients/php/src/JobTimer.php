<?php

declare(strict_types=1);

namespace Phpmq;

use BabelQueue\Contracts\InboundMessage;
use InitPHP\Queue\Message\ReceivedMessage;

/**
 * Runs jobs with a time limit, and holds their messages meanwhile.
 *
 *     $timer = new Phpmq\JobTimer($transport); // or a Client
 *     $timer->run($message, fn () => $handler($message), 600);
 *
 * With ext-pcntl, an alarm extends the hold while the job runs, so that a job that is longer than the
 * queue's ack_timeout_s is not delivered again; the hold of a process that is killed ends as before. At its
 * limit, the job is ended by a JobTimedOut; if it continues for five more seconds, the process is killed. PHP
 * calls a signal handler only between its own instructions: give queries and requests limits of their own.
 *
 * Without ext-pcntl, the hold is extended once, to the limit, and nothing ends the job.
 *
 * Every reserved message of the client is extended, because it waits for the job. The alarm also ends a
 * sleep() of the job. A job must not use pcntl_alarm() itself.
 */
final class JobTimer
{
    private const SHORTEST_HOLD_S = 3; // alarms are whole seconds
    private const HOLD_S = 60; // in a queue without ack_timeout_s
    private const GRACE_S = 5; // for a job that catches all exceptions

    private readonly bool $hasAlarms;

    /** @param bool|null $hasAlarms whether to use ext-pcntl; null: if it is there */
    public function __construct(private readonly Client|PhpmqTransport $client, ?bool $hasAlarms = null)
    {
        $this->hasAlarms = $hasAlarms ?? function_exists('pcntl_alarm');
    }

    /**
     * Returns a handler that does the same with a time limit, such as for InitPHP's HandlerMap.
     *
     * @param callable(InboundMessage): mixed $handler
     * @param int|float $limit seconds
     */
    public function limited(callable $handler, int|float $limit): \Closure
    {
        return fn (InboundMessage $message): mixed => $this->run($message, fn () => $handler($message), $limit);
    }

    /**
     * Runs a job and returns its result.
     *
     * @param Reservation|InboundMessage $message that was reserved through the client
     * @param int|float $limit seconds
     * @throws JobTimedOut
     */
    public function run(Reservation|InboundMessage $message, callable $job, int|float $limit): mixed
    {
        if (!($limit > 0 && $limit <= 86_400 * 365)) {
            throw new PhpmqException("the time limit is $limit s; it must be above 0, and at most a year");
        }
        $reservation = $message instanceof ReceivedMessage ? $message->receipt() : $message;
        if (!$reservation instanceof Reservation) {
            throw new PhpmqException('the message was not reserved through a Client or a PhpmqTransport');
        }
        if (!$this->hasAlarms) {
            $this->client->extendHeld($limit);
            return $job();
        }
        return $this->runWithAlarms($reservation, $job, $limit);
    }

    private function runWithAlarms(Reservation $message, callable $job, int|float $limit): mixed
    {
        $hold = max(self::SHORTEST_HOLD_S, $message->hold ?? self::HOLD_S);
        $period = intdiv((int) $hold, 3);
        $end = Connection::now() + $limit;
        $isDone = $isOver = false;
        $expire = function () use ($limit, &$isDone, &$isOver): void {
            if ($isDone || $isOver) {
                return;
            }
            $isOver = true;
            throw new JobTimedOut("the job has run for its time limit of $limit s");
        };
        $tick = function () use ($hold, $period, $end, $limit, $expire, &$isDone, &$isOver): void {
            $left = $end - Connection::now();
            if ($isDone) {
                return;
            }
            if ($left > 0) {
                pcntl_alarm(min($period, (int) ceil($left)));
                $this->client->extendHeld($hold);
            } elseif (!$isOver) {
                pcntl_alarm(self::GRACE_S);
                $this->client->whenIdle($expire);
            } else {
                error_log("phpmq: a job did not end at its time limit of $limit s; the process ends");
                posix_kill(getmypid(), SIGKILL); // the broker delivers the message again
            }
        };
        $isAsync = pcntl_async_signals(true);
        $former = pcntl_signal_get_handler(SIGALRM);
        pcntl_signal(SIGALRM, $tick, false);
        try {
            if (($message->hold ?? INF) - $message->heldFor() < 2 * $period) {
                $this->client->extendHeld($hold);
            }
            pcntl_alarm(min($period, (int) ceil($limit)));
            $result = $job();
            $isDone = true;
            return $result;
        } finally {
            $isDone = true;
            pcntl_alarm(0);
            pcntl_signal(SIGALRM, $former);
            pcntl_async_signals($isAsync);
        }
    }
}
