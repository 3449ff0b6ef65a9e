/**
 * A PHPMQ client for Node 18 or newer: one file, no packages. Copy it into your project.
 *
 *     import { Client } from './phpmq.mjs';
 *
 *     const client = new Client('127.0.0.1:9100');
 *     await client.publish('orders', '{"order_id": 1042}', { ttl: 3600 }); // on the broker's disk
 *     for await (const message of client.consume('orders', 10)) {
 *         console.log(message.content.toString());
 *         message.ack(); // or message.retry({ delay_s: 5 }), message.requeue(60), message.deadLetter()
 *     }
 *     client.close();
 *
 * The client connects automatically and reconnects after a loss. Publishes without a receipt are then
 * repeated with their keys, so each is stored once; unacknowledged messages are delivered again. A publish
 * fails at once if the name or TLS is wrong and the client was never connected. Nothing that listens may be
 * a broker that starts later: that is written to the console, and tried again.
 *
 * With TLS, the address is tls://HOST:PORT, and `new Client(address, { tls })` takes the options of Node's
 * tls.connect, such as ca, cert and key. NODE_EXTRA_CA_CERTS names a file of certificates to trust, too.
 *
 * `publish` takes options by the names of the broker's HTTP API: delay_s, deliver_at (a Date or Unix
 * milliseconds), priority (0 is first, 128 the default), group, unique_key, and if_exists ('keep' or 'replace').
 * A broker of an earlier version knows none of them, and is found out by its end of a connection that begins
 * with a hello.
 *
 * As a program:
 *
 *     node phpmq.mjs publish 127.0.0.1:9100 orders '{"order_id": 1042}' [TTL [OPTIONS]]
 *     node phpmq.mjs consume 127.0.0.1:9100 orders [MESSAGES]
 *     node phpmq.mjs requeue 127.0.0.1:9100 orders TTL
 *     node phpmq.mjs retry 127.0.0.1:9100 orders SECONDS
 *
 * where OPTIONS is JSON, such as '{"delay_s": 60, "priority": 0}'.
 */

import { randomUUID } from 'node:crypto';
import { lookup } from 'node:dns/promises';
import { readFile } from 'node:fs/promises';
import { connect, isIP } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { hostname } from 'node:os';
import { pathToFileURL } from 'node:url';

const PUBLISH = '001', CONSUME = '002', DISPATCH = '003', ACKNOWLEDGE = '004', REQUEUE = '005';
const DEAD_LETTER = '006', RECEIPT = '007', PUBLISH_WITH_OPTIONS = '010', SETTLE = '011', CONSUME_WITH_OPTIONS = '012';
const DISPATCH_WITH_INFO = '013', HELLO = '014', WELCOME = '015';
const QUEUE = '01', CONTENT = '02', ID = '03', COUNT = '04', TTL = '05'; // ID: message id or publish key
const OPTIONS = '06'; // a JSON object
const MAX_PACKET_BYTES = 1 << 30; // the broker never sends a larger packet
const CONNECT_MS = 10_000; // for all addresses of the name
const NEXT_ADDRESS_MS = 500; // an address that has not answered by then is raced by the next one
const KEEP_ALIVE_MS = 30_000; // without traffic; then the system sends probes
const CHECK_MS = 15_000; // between checks for unacknowledged bytes
const UNACKNOWLEDGED_MS = 60_000; // then, bytes that are sent in vain end the connection

const TLS_ALERT = Buffer.from([0x15, 3]); // the first bytes of a listener with TLS to a client without it
const HELLO_ENDS = 2; // connections in a row that a broker of an earlier version ends after a hello
const NO_HELLO_MS = 600_000; // then, it gets none for this time
const SILENT_ENDS = 3; // connections without a byte from the broker, which are then explained

/** The address, the port or TLS is wrong, so another attempt would fail as well. */
export class NotConnected extends Error {}

/** The broker did not store the message. The error message is its reason: paused, queue full, disk full … */
export class PublishRefused extends Error {}

/** Returns the bytes of a frame: a header of 8 bytes, then each packet with a header of 32 bytes. */
function frame(type, packets) {
    const entries = Object.entries(packets).sort(([a], [b]) => order(type, a) - order(type, b));
    const parts = [Buffer.from(`H01${type}${String(entries.length).padStart(2, '0')}`)];
    for (const [packet, content] of entries) {
        const bytes = Buffer.from(content);
        parts.push(Buffer.from(`P${packet}${String(bytes.length).padStart(29, '0')}`), bytes);
    }
    return Buffer.concat(parts);
}

/** Returns a packet's sort key. Any order is valid; the broker reads this one fastest. */
function order(type, packet) {
    return (type === PUBLISH || type === PUBLISH_WITH_OPTIONS) && packet === ID ? 9 : Number(packet);
}

function checkedQueue(queue) {
    const size = Buffer.byteLength(queue);
    if (size < 1 || size > (queue.endsWith('.dlq') ? 259 : 255) || /[\x00-\x09\x0b-\x1f\x7f-\x9f]/.test(queue)) {
        throw new RangeError('a queue name must have 1 to 255 bytes (259 with .dlq) and no control characters; this one '
            + `has ${size} bytes: ${JSON.stringify(queue.slice(0, 40))}`);
    }
    return queue;
}

function checkedTtl(ttl) {
    if (!Number.isSafeInteger(ttl) || ttl < 0) {
        throw new RangeError(`ttl is ${ttl}; use whole seconds, or 0 for a message that never expires`);
    }
    return String(ttl);
}

/** Returns the content of packet 06: options that are set, with dates in Unix milliseconds. */
function encoded(options) {
    return JSON.stringify(options, (name, value) => (name === 'deliver_at' ? +new Date(value) : value));
}

/** Returns an error's class, text and stack, which are shown on the message's page. */
function failure(error) {
    const cut = (text, most) => String(text ?? '').slice(0, most);
    const { name, message, stack } = error ?? {};
    return error === undefined
        ? {} : { exception: cut(name, 200), error: cut(message ?? error, 500), traceback: cut(stack, 1500) };
}

const silent = new Map(); // address -> when it last did not answer; these are tried last

/** Returns what to do about an error that another attempt would meet, too, or undefined. */
function remedy(error, host, port) {
    const noTls = `use ${host}:${port} without tls://, or set tls_cert and tls_key of that listener`;
    if (error.code === 'ENOTFOUND') {
        return `the name ${host} is unknown; check the address`;
    } else if (error.code === 'ECONNREFUSED') {
        return `no broker listens on ${host}:${port}; start it, or correct the port`;
    } else if (error.code === 'ERR_SSL_WRONG_VERSION_NUMBER') {
        return `${host}:${port} does not use TLS; ${noTls}`;
    } else if (error.isHandshake && error.code === 'ECONNRESET') {
        return `${host}:${port} ended the TLS handshake: it may not allow this address (tcp.allow), or not use TLS `
            + `(then ${noTls})`;
    } else if (error.code === 'ERR_TLS_CERT_ALTNAME_INVALID') {
        return `the certificate of ${host}:${port} is for another name (${error.reason}); connect with one of its names`;
    } else if (error.code === 'CERT_HAS_EXPIRED') {
        return `the certificate of ${host}:${port} has expired; renew the tls_cert of the listener`;
    } else if (error.isHandshake && /CERT|UNABLE_TO/.test(error.code)) {
        return `the certificate of ${host}:${port} is not trusted (${error.message}); pass its authority with `
            + '{ tls: { ca } } or NODE_EXTRA_CA_CERTS=FILE';
    }
}

/** Returns a connected socket that has completed its TLS handshake. */
function secure(socket, host, options) {
    return new Promise((resolve, reject) => {
        const name = isIP(host) ? {} : { servername: host };
        const tls = connectTls({ socket, host, ...name, ...options });
        tls.setTimeout(CONNECT_MS, () => tls.destroy(new Error('no TLS handshake in time')));
        tls.once('error', (error) => reject(Object.assign(error, { isHandshake: true })));
        tls.once('secureConnect', () => resolve(tls.setTimeout(0)));
    });
}

/** Returns a socket that is connected to the first address of the host that answers. */
async function dial(host, port, signal) {
    const addresses = (await lookup(host, { all: true })).map(({ address }) => address);
    addresses.sort((a, b) => (silent.get(a) ?? 0) - (silent.get(b) ?? 0));
    return new Promise((resolve, reject) => {
        const begun = new Map(); // sockets by address
        let last = new Error(`${host}:${port} does not answer`);
        let next;
        const end = (settle, result) => {
            clearTimeout(next);
            clearTimeout(limit);
            signal.removeEventListener('abort', abort);
            for (const [address, socket] of begun) {
                if (socket !== result) {
                    signal.aborted || silent.set(address, Date.now());
                    socket.destroy();
                }
            }
            settle(result);
        };
        const abort = () => end(reject, new Error('closed'));
        const limit = setTimeout(() => end(reject, last), CONNECT_MS);
        signal.addEventListener('abort', abort);
        const begin = () => {
            clearTimeout(next);
            const address = addresses.shift();
            if (address === undefined || signal.aborted) {
                begun.size > 0 || end(reject, last);
                return;
            }
            const options = { noDelay: true, keepAlive: true, keepAliveInitialDelay: KEEP_ALIVE_MS };
            const socket = connect({ host: address, port, ...options });
            begun.set(address, socket);
            const failed = (error) => {
                last = error;
                silent.set(address, Date.now());
                begun.delete(address) && begin();
            };
            socket.once('error', failed);
            socket.once('connect', () => {
                silent.delete(address);
                end(resolve, socket);
            });
            next = setTimeout(begin, NEXT_ADDRESS_MS);
        };
        begin();
    });
}

/**
 * Destroys a socket whose bytes get no acknowledgement for a minute, on Linux. Node cannot set
 * TCP_USER_TIMEOUT; the system alone gives up after 15 minutes, and sends no keep-alive probes meanwhile.
 */
function watchUnacknowledged(socket) {
    const table = socket.remoteFamily === 'IPv6' ? '/proc/net/tcp6' : '/proc/net/tcp';
    const hex = (port) => port.toString(16).toUpperCase().padStart(4, '0');
    const [local, remote] = [hex(socket.localPort), hex(socket.remotePort)];
    const row = new RegExp(`^ *\\d+: [0-9A-F]+:${local} [0-9A-F]+:${remote} 01 ([0-9A-F]+):\\S+ (..):\\S+ ([0-9A-F]+)`, 'm');
    let [acknowledged, since] = [0, null];
    const timer = setInterval(async () => {
        if (socket.bytesWritten === acknowledged) {
            return; // nothing was written since the last check
        }
        const written = socket.bytesWritten;
        const [, unacknowledged, retransmits, times] = row.exec(await readFile(table, 'latin1').catch(() => '')) ?? [];
        if (unacknowledged === undefined || Number.parseInt(unacknowledged, 16) === 0) {
            [acknowledged, since] = [written, null];
        } else if (retransmits !== '01' || Number.parseInt(times, 16) === 0) {
            since = null; // on their way, or the broker is alive and does not read
        } else if (Date.now() - (since ??= Date.now()) >= UNACKNOWLEDGED_MS) {
            socket.destroy(new Error('the broker does not acknowledge any bytes'));
        }
    }, CHECK_MS);
    timer.unref();
    socket.once('close', () => clearInterval(timer));
}

/** A received message. Settle it with one of its four methods. */
export class Message {
    /** @param {object} info attempt, deliveries, hold_s, priority, group and age_s; empty if the broker does not tell */
    constructor(client, queue, id, content, ttl, info = {}) {
        Object.assign(this, { client, queue, id, content, ttl, info }); // content is a Buffer; ttl is in seconds, 0 if none
    }

    /**
     * Lets the message wait for its next attempt, because this one has failed: the broker counts and shows it.
     *
     * A broker of an earlier version gets a copy instead, after which the message is acknowledged; await that.
     *
     * @param {{ delay_s?: number, error?: Error, limit?: number }} options limit: of attempts, which is only shown
     */
    retry({ delay_s = 0, error, limit } = {}) {
        if (!(delay_s >= 0)) {
            throw new RangeError(`delay_s is ${delay_s}; it must be 0 or more seconds`);
        }
        const options = { action: 'retry', delay_s, attempt: this.info.attempt, limit, ...failure(error) };
        return this.client.settle(SETTLE, { [QUEUE]: this.queue, [ID]: this.id, [OPTIONS]: encoded(options) }, async () => {
            const ttl = Math.ceil(delay_s);
            const [queue, rest] = ttl > 0 ? [`${this.queue}.retry`, ttl] : [this.queue, this.ttl];
            await this.client.publish(queue, this.content, { ttl: rest, key: `${this.id}:copy` });
            this.ack();
        });
    }

    /** Acknowledges the message as processed. */
    ack() {
        this.client.settle(ACKNOWLEDGE, { [QUEUE]: this.queue, [ID]: this.id });
    }

    /** Moves the message to the end of its queue with a TTL in seconds (0 means no expiry). */
    requeue(ttl = this.ttl) {
        const packets = { [QUEUE]: this.queue, [ID]: this.id, [TTL]: checkedTtl(ttl) };
        this.client.settle(REQUEUE, packets);
    }

    /** Removes the message from its queue and moves a record of it to `<queue>.dlq`. */
    deadLetter() {
        this.client.settle(DEAD_LETTER, { [QUEUE]: this.queue, [ID]: this.id });
    }
}

export class Client {
    #host;
    #port;
    #tls; // options, or undefined
    #socket = null;
    #isConnected = false;
    #isClosed = false;
    #wasConnected = false; // so that a broker that restarts is waited for
    #isAway = false; // so that a loss is told once
    #silentEnds = 0; // connections in a row that ended without a byte, before any broker has answered
    #input = Buffer.alloc(0); // received bytes of an incomplete frame
    #publishes = new Map(); // unconfirmed publishes: key -> { bytes, size, resolve, reject, timer }
    #consumers = new Map(); // queue -> { credit, waiting: Message[], wake }
    #unsent = []; // settlements to send on the next connection: [bytes, what to do for a broker of an earlier version]
    #largestContent = Infinity; // bytes of a message, as the broker's welcome says
    #frames = []; // numbers of the frames of packets with options that the broker knows
    #helloEnds = 0; // connections in a row that ended after a hello, without an answer
    #noHelloUntil = 0;
    #hasAnswered = false; // on this connection
    #isGreeting = false; // a hello was sent and is not answered yet
    #isConnecting = false;
    #stop = new AbortController(); // ends a connection attempt
    #timer = undefined; // timer of the next connection attempt
    #pause = 0.1; // seconds before the next connection attempt

    /** @param {string} address HOST:PORT or tls://HOST:PORT of a listener with TTL (port 9100) */
    constructor(address = '127.0.0.1:9100', { timeout = 30, tls = {}, maxContent = 8 << 20 } = {}) {
        const [, scheme, host, port] = /^(tls:\/\/)?\[?([^\[\]/]+?)\]?:(\d+)$/.exec(address) ?? [];
        if (host === undefined || port < 1 || port > 65535) {
            throw new RangeError(`${address} is not a valid address; use HOST:PORT or tls://HOST:PORT, with a port up to 65535`);
        }
        this.#host = host;
        this.#port = Number(port);
        this.#tls = scheme && tls;
        this.timeout = timeout; // seconds to wait for a receipt, including reconnects
        this.maxContent = maxContent; // maximum bytes of a message: the broker's limits.max_content
    }

    /**
     * Resolves when the message is on the broker's disk. To retry after a timeout, pass the same key.
     *
     * @param {object} options delay_s, deliver_at, priority, group, unique_key, if_exists: see the top of this file
     * @throws {PublishRefused} nothing was stored
     * @throws {NotConnected} at once: the client was never connected, and its address is wrong
     */
    publish(queue, content, { ttl = 0, key = randomUUID(), ...options } = {}) {
        const packets = { [QUEUE]: checkedQueue(queue), [CONTENT]: content, [TTL]: checkedTtl(ttl), [ID]: key };
        const hasOptions = Object.values(options).some((value) => value !== undefined);
        if (hasOptions) {
            delete packets[TTL];
            packets[OPTIONS] = encoded({ ttl_s: ttl, ...options });
        }
        if (this.#publishes.has(key) || Buffer.byteLength(key) < 1 || Buffer.byteLength(key) > 64) {
            throw new RangeError('a key must have 1 to 64 bytes and must not belong to another unconfirmed publish');
        }
        if (Buffer.byteLength(content) > this.maxContent) {
            throw new RangeError(`the message has ${Buffer.byteLength(content)} bytes; the limit is ${this.maxContent}: `
                + "raise the broker's limits.max_content, and pass maxContent");
        }
        const bytes = frame(hasOptions ? PUBLISH_WITH_OPTIONS : PUBLISH, packets);
        if (this.#isClosed) {
            return Promise.reject(new Error('the client is closed; nothing was sent'));
        }
        return new Promise((resolve, reject) => {
            const timer = setTimeout(() => {
                this.#publishes.delete(key);
                reject(new Error(`no receipt within ${this.timeout} s; the message may be stored`));
            }, this.timeout * 1000);
            const size = Buffer.byteLength(content);
            this.#publishes.set(key, { bytes, size, resolve, reject, timer, hasOptions });
            this.#isConnected ? this.#publish(key) : this.#connect(); // which sends it, too
        });
    }

    /**
     * Yields messages without end, with at most `credit` of them unacknowledged at a time. While a loop
     * reads from a queue, another one for the same queue needs a client of its own.
     */
    async *consume(queue, credit = 1) {
        const consumer = { credit, waiting: [], wake: null };
        if (this.#consumers.has(checkedQueue(queue))) {
            throw new RangeError(`this client already consumes ${queue}; use another client, or a larger credit`);
        }
        this.#consumers.set(queue, consumer);
        this.#isConnected ? this.#consume(queue, credit) : this.#connect(); // which sends it, too
        try {
            while (!this.#isClosed) {
                if (consumer.waiting.length > 0) {
                    yield consumer.waiting.shift();
                } else {
                    await new Promise((wake) => { consumer.wake = wake; });
                }
            }
        } finally {
            this.#consumers.delete(queue);
            if (this.#isConnected) { // a count of 0 returns unacknowledged messages to the queue
                this.#socket.write(frame(CONSUME, { [QUEUE]: queue, [COUNT]: '0' }));
            }
        }
    }

    /**
     * Sends 004, 005, 006 or 011 now, or first on the next connection.
     *
     * @param {() => Promise<void>} otherwise what to do for a broker that does not know 011
     */
    settle(type, packets, otherwise) {
        const bytes = frame(type, packets);
        if (this.#isConnected) {
            return this.#settle(bytes, otherwise);
        } else if (!this.#isClosed) {
            this.#unsent.push([bytes, otherwise]);
            this.#connect();
        }
    }

    #settle(bytes, otherwise) {
        if (otherwise === undefined || this.#knows(SETTLE)) {
            this.#socket.write(bytes);
        } else {
            return otherwise().catch((error) => console.error(`phpmq: the copy was not stored (${error.message})`));
        }
    }

    /** Closes after sending pending data; unacknowledged messages return to their queues. */
    close() {
        this.#isClosed = true;
        clearTimeout(this.#timer);
        this.#stop.abort();
        this.#fail(new Error('closed before the receipt arrived; the message may be stored'));
        this.#consumers.forEach((consumer) => consumer.wake?.());
        this.#isConnected ? this.#socket.end() : this.#socket?.destroy();
    }

    /** Rejects all unconfirmed publishes; returns whether there were any. */
    #fail(error) {
        const publishes = [...this.#publishes.values()];
        this.#publishes.clear();
        for (const { reject, timer } of publishes) {
            clearTimeout(timer);
            reject(error);
        }
        return publishes.length > 0;
    }

    #largest() {
        return Math.max(0, ...[...this.#publishes.values()].map(({ size }) => size));
    }

    // -- the connection

    #knows(type) {
        return this.#frames.includes(Number(type));
    }

    #publish(key) {
        const { bytes, size, reject, timer, hasOptions } = this.#publishes.get(key);
        const isTooLarge = size > this.#largestContent;
        if (!isTooLarge && (!hasOptions || this.#knows(PUBLISH_WITH_OPTIONS))) {
            this.#socket.write(bytes);
            return;
        }
        this.#publishes.delete(key);
        clearTimeout(timer);
        const address = `${this.#host}:${this.#port}`;
        reject(isTooLarge
            ? new RangeError(`the message has ${size} bytes; the limit of ${address} is ${this.#largestContent}: `
                + 'raise its limits.max_content')
            : new Error(`the broker at ${address} is of an earlier version, which knows no options; upgrade it, or `
                + 'publish with a ttl only'));
    }

    #consume(queue, credit) {
        const packets = { [QUEUE]: queue, [COUNT]: String(credit) };
        const asksForInfo = this.#knows(CONSUME_WITH_OPTIONS);
        this.#socket.write(asksForInfo
            ? frame(CONSUME_WITH_OPTIONS, { ...packets, [OPTIONS]: encoded({ info: true }) }) : frame(CONSUME, packets));
    }

    async #connect() {
        if (this.#isConnecting || this.#socket !== null || this.#isClosed) {
            return;
        }
        this.#isConnecting = true;
        try {
            const socket = await dial(this.#host, this.#port, this.#stop.signal);
            this.#begin(this.#tls === undefined ? socket : await secure(socket, this.#host, this.#tls));
        } catch (error) {
            const sentence = remedy(error, this.#host, this.#port);
            const isPermanent = sentence !== undefined && error.code !== 'ECONNREFUSED' && !this.#wasConnected;
            const isTold = isPermanent && this.#fail(new NotConnected(sentence));
            this.#isClosed || isTold || this.#isAway || console.error(`phpmq: ${sentence ?? error.message}`);
            this.#lost();
        } finally {
            this.#isConnecting = false;
        }
    }

    #begin(socket) {
        this.#socket = socket;
        socket.removeAllListeners('error');
        const began = Date.now();
        socket.on('data', (bytes) => this.#receive(bytes));
        socket.on('error', (error) => {
            const isTold = error instanceof NotConnected && this.#fail(error);
            isTold || console.error(`phpmq: ${error.message}`);
        });
        socket.on('close', () => {
            if (this.#isGreeting && ++this.#helloEnds === HELLO_ENDS) {
                this.#noHelloUntil = Date.now() + NO_HELLO_MS;
            } else if (!this.#isGreeting && this.#helloEnds >= HELLO_ENDS && !this.#hasAnswered) {
                [this.#helloEnds, this.#noHelloUntil] = [0, 0]; // the hello was not the reason
            }
            this.#wasConnected ||= Date.now() - began > 500;
            if (this.#wasConnected && !this.#isClosed && !this.#isAway) {
                this.#isAway = true;
                console.error(`phpmq: the connection to ${this.#host}:${this.#port} is lost; trying again`);
            }
            if (!this.#wasConnected && ++this.#silentEnds === SILENT_ENDS) {
                console.error(
                    `phpmq: ${this.#host}:${this.#port} ended ${this.#silentEnds} connections without an answer; it may not `
                    + 'allow this address (tcp.allow), need a client certificate (tcp.tls_client_ca), or have a '
                    + `limits.max_content below the ${this.#largest()} bytes of a message`,
                );
            }
            this.#lost();
        });
        watchUnacknowledged(socket);
        this.#hasAnswered = false;
        this.#isGreeting = Date.now() >= this.#noHelloUntil;
        if (this.#isGreeting) { // its answer is the only way to know what the broker understands
            const facts = { name: 'phpmq.mjs', version: '0.2.0', pid: process.pid, host: hostname() };
            socket.write(frame(HELLO, { [ID]: 'hello', [OPTIONS]: encoded(facts) }));
        } else {
            this.#ready([]);
        }
    }

    /** Sends what waits for a connection whose broker knows these frames. */
    #ready(frames) {
        [this.#isGreeting, this.#isConnected, this.#frames] = [false, true, frames];
        if (this.#isAway) {
            console.error(`phpmq: connected to ${this.#host}:${this.#port} again`);
        }
        this.#isAway = false;
        for (const [bytes, otherwise] of this.#unsent.splice(0)) { // before other consumers receive these messages
            this.#settle(bytes, otherwise);
        }
        for (const key of [...this.#publishes.keys()]) {
            this.#publish(key);
        }
        for (const [queue, { credit }] of this.#consumers) {
            this.#consume(queue, credit);
        }
        if (this.#isClosed) {
            this.#socket.end();
        }
    }

    #lost() {
        this.#socket = null;
        this.#isConnected = this.#isGreeting = false;
        this.#input = Buffer.alloc(0);
        for (const consumer of this.#consumers.values()) {
            consumer.waiting = []; // the broker delivers these messages again
        }
        if (!this.#isClosed) {
            clearTimeout(this.#timer);
            this.#timer = setTimeout(() => this.#connect(), this.#pause * (500 + Math.random() * 500));
            this.#pause = Math.min(this.#pause * 2, 10);
        }
    }

    // -- what the broker sends

    #receive(bytes) {
        this.#input = Buffer.concat([this.#input, bytes]);
        try {
            for (let size; (size = this.#frameSize()) > 0; this.#input = this.#input.subarray(size)) {
                this.#hasAnswered = true;
                this.#pause = 0.1; // the peer is a broker
                this.#wasConnected = true;
            }
        } catch (error) {
            this.#socket.destroy(error);
        }
    }

    /** Handles the first frame of the input; returns its size, or 0 if it is incomplete. */
    #frameSize() {
        const input = this.#input;
        const address = `${this.#host}:${this.#port}`;
        if (input.subarray(0, 2).equals(TLS_ALERT)) {
            throw new NotConnected(`${address} uses TLS; use tls://${address}, with { tls: { ca } } for a private authority`);
        } else if (input.toString('latin1', 0, 5) === 'HTTP/') {
            throw new NotConnected(`${address} is not a PHPMQ broker: it answers in HTTP, as the port of the admin does; `
                + 'use the port of PHPMQ, such as 9100');
        } else if (input.length < 8) {
            return 0;
        }
        const header = /^H01(003|007|013|015)(\d\d)$/.exec(input.toString('latin1', 0, 8));
        if (header === null) {
            throw new Error('the server is not a PHPMQ broker');
        }
        const packets = {};
        let at = 8;
        for (let left = Number(header[2]); left > 0; left--) {
            if (input.length < at + 32) {
                return 0;
            }
            const packet = /^P(\d\d)(\d{29})$/.exec(input.toString('latin1', at, at + 32));
            if (packet === null || Number(packet[2]) > MAX_PACKET_BYTES) {
                throw new Error('the broker sent an invalid packet header');
            }
            const end = at + 32 + Number(packet[2]);
            if (input.length < end) {
                return 0;
            }
            packets[packet[1]] = Buffer.from(input.subarray(at + 32, end));
            at = end;
        }
        this.#handle(header[1], packets);
        return at;
    }

    #handle(type, packets) {
        const queue = packets[QUEUE]?.toString();
        const id = packets[ID].toString();
        const options = packets[OPTIONS] === undefined ? {} : JSON.parse(packets[OPTIONS]);
        if (type === WELCOME) {
            this.#helloEnds = 0;
            this.#largestContent = options.max_content;
            this.#ready(options.frames);
        } else if (type === RECEIPT) {
            const publish = this.#publishes.get(id);
            if (publish !== undefined) { // otherwise, the receipt is too late
                this.#publishes.delete(id);
                clearTimeout(publish.timer);
                const reason = packets[CONTENT]?.toString();
                reason === undefined ? publish.resolve() : publish.reject(new PublishRefused(reason));
            }
        } else if (type === DISPATCH || type === DISPATCH_WITH_INFO) {
            const consumer = this.#consumers.get(queue);
            const ttl = Number(packets[TTL] ?? 0);
            consumer?.waiting.push(new Message(this, queue, id, packets[CONTENT], ttl, options));
            consumer?.wake?.();
        }
    }
}

async function main([command, address, queue, ...rest]) {
    const client = new Client(address);
    if (command === 'publish') {
        await client.publish(queue, rest[0], { ttl: Number(rest[1] ?? 0), ...JSON.parse(rest[2] ?? '{}') });
        console.log('stored');
    } else if (['consume', 'requeue', 'retry'].includes(command)) {
        let left = command === 'consume' ? Number(rest[0] ?? 1) : 1;
        for await (const message of client.consume(queue)) {
            console.log(message.content.toString() + (message.ttl > 0 ? `  (${message.ttl} s left)` : ''));
            if (command === 'consume') {
                message.ack();
            } else if (command === 'requeue') {
                message.requeue(Number(rest[0]));
            } else {
                await message.retry({ delay_s: Number(rest[0]), error: new Error('the retry command') });
            }
            if (--left === 0) {
                break;
            }
        }
    } else {
        throw new RangeError('the first argument must be publish, consume, requeue or retry');
    }
    client.close();
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
    main(process.argv.slice(2)).catch((error) => {
        console.error(error.message);
        process.exit(1);
    });
}
