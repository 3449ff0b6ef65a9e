/**
 * A PHPMQ client for Node 18 or newer: one file, no packages. Copy it into your project.
 *
 *     import { Client } from './phpmq.mjs';
 *
 *     const client = new Client('127.0.0.1:9100');
 *     await client.publish('orders', '{"order_id": 1042}', { ttl: 3600 }); // on the broker's disk
 *     for await (const message of client.consume('orders', 10)) {
 *         console.log(message.content.toString());
 *         message.ack(); // or message.requeue(60), message.deadLetter()
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
 * As a program:
 *
 *     node phpmq.mjs publish 127.0.0.1:9100 orders '{"order_id": 1042}' [TTL]
 *     node phpmq.mjs consume 127.0.0.1:9100 orders [MESSAGES]
 *     node phpmq.mjs requeue 127.0.0.1:9100 orders TTL
 */

import { randomUUID } from 'node:crypto';
import { lookup } from 'node:dns/promises';
import { readFile } from 'node:fs/promises';
import { connect, isIP } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { pathToFileURL } from 'node:url';

const PUBLISH = '001', CONSUME = '002', DISPATCH = '003', ACKNOWLEDGE = '004', REQUEUE = '005';
const DEAD_LETTER = '006', RECEIPT = '007';
const QUEUE = '01', CONTENT = '02', ID = '03', COUNT = '04', TTL = '05'; // ID: message id or publish key
const MAX_PACKET_BYTES = 1 << 30; // the broker never sends a larger packet
const CONNECT_MS = 10_000; // for all addresses of the name
const NEXT_ADDRESS_MS = 500; // an address that has not answered by then is raced by the next one
const KEEP_ALIVE_MS = 30_000; // without traffic; then the system sends probes
const CHECK_MS = 15_000; // between checks for unacknowledged bytes
const UNACKNOWLEDGED_MS = 60_000; // then, bytes that are sent in vain end the connection

const TLS_ALERT = Buffer.from([0x15, 3]); // the first bytes of a listener with TLS to a client without it
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
    return type === PUBLISH && packet === ID ? 9 : Number(packet);
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

/** A received message. Settle it with one of its three methods. */
export class Message {
    constructor(client, queue, id, content, ttl) {
        Object.assign(this, { client, queue, id, content, ttl }); // content is a Buffer; ttl is in seconds, 0 if none
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
    #unsent = []; // settlements to send on the next connection
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
     * @throws {PublishRefused} nothing was stored
     * @throws {NotConnected} at once: the client was never connected, and its address is wrong
     */
    publish(queue, content, { ttl = 0, key = randomUUID() } = {}) {
        const packets = { [QUEUE]: checkedQueue(queue), [CONTENT]: content, [TTL]: checkedTtl(ttl), [ID]: key };
        if (this.#publishes.has(key) || Buffer.byteLength(key) < 1 || Buffer.byteLength(key) > 64) {
            throw new RangeError('a key must have 1 to 64 bytes and must not belong to another unconfirmed publish');
        }
        if (Buffer.byteLength(content) > this.maxContent) {
            throw new RangeError(`the message has ${Buffer.byteLength(content)} bytes; the limit is ${this.maxContent}: `
                + "raise the broker's limits.max_content, and pass maxContent");
        }
        const bytes = frame(PUBLISH, packets);
        if (this.#isClosed) {
            return Promise.reject(new Error('the client is closed; nothing was sent'));
        }
        return new Promise((resolve, reject) => {
            const timer = setTimeout(() => {
                this.#publishes.delete(key);
                reject(new Error(`no receipt within ${this.timeout} s; the message may be stored`));
            }, this.timeout * 1000);
            this.#publishes.set(key, { bytes, size: Buffer.byteLength(content), resolve, reject, timer });
            this.#write(bytes);
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
        this.#write(frame(CONSUME, { [QUEUE]: queue, [COUNT]: String(credit) }));
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
                this.#write(frame(CONSUME, { [QUEUE]: queue, [COUNT]: '0' }));
            }
        }
    }

    /** Sends 004, 005 or 006 now, or first on the next connection if not connected. */
    settle(type, packets) {
        const bytes = frame(type, packets);
        if (this.#isConnected) {
            this.#socket.write(bytes);
        } else if (!this.#isClosed) {
            this.#unsent.push(bytes);
            this.#connect();
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

    #write(bytes) {
        if (this.#isConnected) {
            this.#socket.write(bytes);
        } else {
            this.#connect(); // sends the frame after connecting, from #publishes or #consumers
        }
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
        this.#isConnected = true;
        if (this.#isAway) {
            console.error(`phpmq: connected to ${this.#host}:${this.#port} again`);
        }
        this.#isAway = false;
        socket.removeAllListeners('error');
        const began = Date.now();
        socket.on('data', (bytes) => this.#receive(bytes));
        socket.on('error', (error) => {
            const isTold = error instanceof NotConnected && this.#fail(error);
            isTold || console.error(`phpmq: ${error.message}`);
        });
        socket.on('close', () => {
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
        for (const bytes of this.#unsent.splice(0)) { // before other consumers receive these messages
            socket.write(bytes);
        }
        for (const { bytes } of this.#publishes.values()) {
            socket.write(bytes);
        }
        for (const [queue, { credit }] of this.#consumers) {
            socket.write(frame(CONSUME, { [QUEUE]: queue, [COUNT]: String(credit) }));
        }
        if (this.#isClosed) {
            socket.end();
        }
    }

    #lost() {
        this.#socket = null;
        this.#isConnected = false;
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
        const header = /^H01(003|007)(\d\d)$/.exec(input.toString('latin1', 0, 8));
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
        const queue = packets[QUEUE].toString();
        const id = packets[ID].toString();
        if (type === RECEIPT) {
            const publish = this.#publishes.get(id);
            if (publish !== undefined) { // otherwise, the receipt is too late
                this.#publishes.delete(id);
                clearTimeout(publish.timer);
                const reason = packets[CONTENT]?.toString();
                reason === undefined ? publish.resolve() : publish.reject(new PublishRefused(reason));
            }
        } else if (type === DISPATCH) {
            const consumer = this.#consumers.get(queue);
            const ttl = Number(packets[TTL] ?? 0);
            consumer?.waiting.push(new Message(this, queue, id, packets[CONTENT], ttl));
            consumer?.wake?.();
        }
    }
}

async function main([command, address, queue, ...rest]) {
    const client = new Client(address);
    if (command === 'publish') {
        await client.publish(queue, rest[0], { ttl: Number(rest[1] ?? 0) });
        console.log('stored');
    } else if (command === 'consume' || command === 'requeue') {
        let left = command === 'consume' ? Number(rest[0] ?? 1) : 1;
        for await (const message of client.consume(queue)) {
            console.log(message.content.toString() + (message.ttl > 0 ? `  (${message.ttl} s left)` : ''));
            command === 'consume' ? message.ack() : message.requeue(Number(rest[0]));
            if (--left === 0) {
                break;
            }
        }
    } else {
        throw new RangeError('the first argument must be publish, consume or requeue');
    }
    client.close();
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
    main(process.argv.slice(2)).catch((error) => {
        console.error(error.message);
        process.exit(1);
    });
}
