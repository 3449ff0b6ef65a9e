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
 * repeated with their keys, so each is stored once; unacknowledged messages are delivered again.
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
import { connect } from 'node:net';
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
        throw new RangeError('a queue name must have 1 to 255 bytes (259 with .dlq) and no control characters');
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
    #socket = null;
    #isConnected = false;
    #isClosed = false;
    #input = Buffer.alloc(0); // received bytes of an incomplete frame
    #publishes = new Map(); // unconfirmed publishes: key -> { bytes, resolve, reject, timer }
    #consumers = new Map(); // queue -> { credit, waiting: Message[], wake }
    #unsent = []; // settlements to send on the next connection
    #isConnecting = false;
    #stop = new AbortController(); // ends a connection attempt
    #timer = undefined; // timer of the next connection attempt
    #pause = 0.1; // seconds before the next connection attempt

    /** @param {string} address HOST:PORT of a listener with TTL (port 9100) */
    constructor(address = '127.0.0.1:9100', { timeout = 30 } = {}) {
        const [, host, port] = /^\[?(.+?)\]?:(\d+)$/.exec(address) ?? [];
        if (host === undefined) {
            throw new RangeError(`${address} is not a valid address; use HOST:PORT`);
        }
        this.#host = host;
        this.#port = Number(port);
        this.timeout = timeout; // seconds to wait for a receipt, including reconnects
    }

    /**
     * Resolves when the message is on the broker's disk. To retry after a timeout, pass the same key.
     *
     * @throws {PublishRefused} nothing was stored
     */
    publish(queue, content, { ttl = 0, key = randomUUID() } = {}) {
        const packets = { [QUEUE]: checkedQueue(queue), [CONTENT]: content, [TTL]: checkedTtl(ttl), [ID]: key };
        if (this.#publishes.has(key) || Buffer.byteLength(key) < 1 || Buffer.byteLength(key) > 64) {
            throw new RangeError('a key must have 1 to 64 bytes and must not belong to another unconfirmed publish');
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
            this.#publishes.set(key, { bytes, resolve, reject, timer });
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
        for (const { reject, timer } of this.#publishes.values()) {
            clearTimeout(timer);
            reject(new Error('closed before the receipt arrived; the message may be stored'));
        }
        this.#publishes.clear();
        this.#consumers.forEach((consumer) => consumer.wake?.());
        this.#isConnected ? this.#socket.end() : this.#socket?.destroy();
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
            this.#begin(await dial(this.#host, this.#port, this.#stop.signal));
        } catch (error) {
            this.#isClosed || console.error(`phpmq: ${error.message}`);
            this.#lost();
        } finally {
            this.#isConnecting = false;
        }
    }

    #begin(socket) {
        this.#socket = socket;
        this.#isConnected = true;
        socket.removeAllListeners('error');
        socket.on('data', (bytes) => this.#receive(bytes));
        socket.on('error', (error) => console.error(`phpmq: ${error.message}`));
        socket.on('close', () => this.#lost());
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
            }
        } catch (error) {
            this.#socket.destroy(error);
        }
    }

    /** Handles the first frame of the input; returns its size, or 0 if it is incomplete. */
    #frameSize() {
        const input = this.#input;
        if (input.length < 8) {
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
