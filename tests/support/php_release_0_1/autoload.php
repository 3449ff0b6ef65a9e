<?php
/** Autoloads the classes in this folder, for programs without Composer. */

declare(strict_types=1);

spl_autoload_register(function (string $class): void {
    $file = __DIR__ . '/src/' . substr($class, strlen('Phpmq\\')) . '.php';
    if (str_starts_with($class, 'Phpmq\\') && is_file($file)) {
        require $file;
    }
});
require_once __DIR__ . '/contracts.php';
