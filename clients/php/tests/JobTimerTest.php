<?php

declare(strict_types=1);

namespace Phpmq\Tests;

use Phpmq\Client;
use Phpmq\Connection;
use Phpmq\JobTimedOut;
use Phpmq\JobTimer;
use Phpmq\PhpmqException;
use Phpmq\Reservation;
use PHPUnit\Framework\TestCase;

/** Without a broker: the holds that it extends are tested by the broker's tests. */
final class JobTimerTest extends TestCase
{
    private static function message(): Reservation
    {
        return new Reservation('id', 'body', 0, Connection::now(), getmypid(), 'orders');
    }

    public function testResultIsThatOfTheJob(): void
    {
        foreach ([true, false] as $hasAlarms) {
            $timer = new JobTimer(new Client('127.0.0.1:1'), $hasAlarms);
            $this->assertSame('done', $timer->run(self::message(), fn (): string => 'done', 5));
        }
    }

    public function testJobIsEndedAtItsLimit(): void
    {
        if (!function_exists('pcntl_alarm')) {
            $this->markTestSkipped('ext-pcntl is missing');
        }
        $former = pcntl_signal_get_handler(SIGALRM);
        $began = hrtime(true);
        try {
            (new JobTimer(new Client('127.0.0.1:1')))->run(self::message(), fn () => sleep(30), 1);
            sleep(0);
        } catch (JobTimedOut $error) {
            $this->assertSame('the job has run for its time limit of 1 s', $error->getMessage());
        }
        $this->assertLessThan(20e9, hrtime(true) - $began);
        $this->assertSame([$former, 0], [pcntl_signal_get_handler(SIGALRM), pcntl_alarm(0)]);
    }

    public function testLimitThatCannotBeIsRefused(): void
    {
        $this->expectException(PhpmqException::class);
        $this->expectExceptionMessage('the time limit is 0 s; it must be above 0');
        (new JobTimer(new Client('127.0.0.1:1')))->run(self::message(), fn () => null, 0);
    }
}
