<?php

declare(strict_types=1);

namespace Phpmq;

/**
 * The file descriptor below a stream, which PHP itself cannot reach.
 *
 * Needs ext-ffi, which PHP enables on the command line; without it, every method does nothing.
 */
final class Descriptor
{
    private const LIBC = 'int fcntl(int fd, int cmd, ...); int open(const char *path, int flags, ...);'
        . ' int dup2(int from, int to); int close(int fd);';
    private const F_SETFD = 2;
    private const FD_CLOEXEC = 1;
    private const O_RDWR = 2;
    private const IS_SOCKET = 0140000;

    private static \FFI|false|null $libc = null;

    /**
     * Keeps programs that this process starts from inheriting the socket.
     *
     * @param resource $stream
     */
    public static function closeOnExec($stream): void
    {
        if (($fd = self::of($stream)) !== null) {
            self::libc()->fcntl($fd, self::F_SETFD, self::FD_CLOEXEC);
        }
    }

    /**
     * Points this process's descriptor to /dev/null; a process that shares the socket keeps it unchanged.
     *
     * @param resource $stream
     */
    public static function detach($stream): void
    {
        if (($fd = self::of($stream)) !== null && ($null = self::libc()->open('/dev/null', self::O_RDWR)) >= 0) {
            self::libc()->dup2($null, $fd);
            self::libc()->close($null);
        }
    }

    /** @param resource $stream */
    private static function of($stream): ?int
    {
        if (self::libc() === null || ($socket = fstat($stream)) === false) {
            return null;
        }
        foreach (scandir('/dev/fd') as $fd) {
            $file = ctype_digit($fd) ? @stat("/dev/fd/$fd") : false;
            $isSocket = $file !== false && ($file['mode'] & 0170000) === self::IS_SOCKET;
            if ($isSocket && $file['ino'] === $socket['ino']) {
                return (int) $fd;
            }
        }
        return null;
    }

    private static function libc(): ?\FFI
    {
        try {
            self::$libc ??= extension_loaded('ffi') && PHP_OS_FAMILY !== 'Windows' && is_dir('/dev/fd')
                ? \FFI::cdef(self::LIBC) : false;
        } catch (\FFI\Exception) {
            self::$libc = false; // ffi.enable does not allow it here, such as in PHP-FPM
        }
        return self::$libc ?: null;
    }
}
