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
 * It connects by itself, and again when the connection is lost: publishes without a receipt are
 * repeated under their keys, so each is stored once; messages that were not acknowledged come again.
 *
 * As a program:
 *
 *     node phpmq.mjs publish 127.0.0.1:9100 orders '{"order_id": 1042}' [TTL]
 *     node phpmq.mjs consume 127.0.0.1:9100 orders [MESSAGES]
 *     node phpmq.mjs requeue 127.0.0.1:9100 orders TTL
 */

import { randomUUID } from 'node:crypto';
import { connect } from 'node:net';
import { pathToFileURL } from 'node:url';

const PUBLISH = '001', CONSUME = '002', DISPATCH = '003', ACKNOWLEDGE = '004', REQUEUE = '005';
const DEAD_LETTER = '006', RECEIPT = '007';
const QUEUE = '01', CONTENT = '02', ID = '03', COUNT = '04', TTL = '05'; // ID: or the key of a publish
const MAX_PACKET_BYTES = 1 << 30; // of the broker; more is no PHPMQ

/** The broker stored nothing and says why in its message: paused, queue full, disk full … */
export class PublishRefused extends Error {}

/** Returns the bytes of a frame: a header of 8 bytes, then each packet after a header of 32. */
function frame(type, packets) {
    const entries = Object.entries(packets).sort(([a], [b]) => order(type, a) - order(type, b));
    const parts = [Buffer.from(`H01${type}${String(entries.length).padStart(2, '0')}`)];
    for (const [packet, content] of entries) {
        const bytes = Buffer.from(content);
        parts.push(Buffer.from(`P${packet}${String(bytes.length).padStart(29, '0')}`), bytes);
    }
    return Buffer.concat(parts);
}

/** Packets may come in any order; this is the one in which the broker reads them fastest. */
function order(type, packet) {
    return type === PUBLISH && packet === ID ? 9 : Number(packet);
}

function checkedQueue(queue) {
    const size = Buffer.byteLength(queue);
    if (size < 1 || size > (queue.endsWith('.dlq') ? 259 : 255) || /[\x00-\x09\x0b-\x1f\x7f-\x9f]/.test(queue)) {
        throw new RangeError('a queue has 1 to 255 bytes (259 with .dlq) and no control characters');
    }
    return queue;
}

function checkedTtl(ttl) {
    if (!Number.isSafeInteger(ttl) || ttl < 0) {
        throw new RangeError(`ttl is ${ttl}: give whole seconds, or 0 for a message that never expires`);
    }
    return String(ttl);
}

/** A message that the broker dispatched. End it with one of its three methods. */
export class Message {
    constructor(client, queue, id, content, ttl) {
        Object.assign(this, { client, queue, id, content, ttl }); // content: a Buffer; ttl: seconds, 0: never
    }

    /** Settles the message. */
    ack() {
        this.client.settle(ACKNOWLEDGE, { [QUEUE]: this.queue, [ID]: this.id });
    }

    /** Moves it to the end of its queue, to live for so many seconds from now on (0: for ever). */
    requeue(ttl = this.ttl) {
        const packets = { [QUEUE]: this.queue, [ID]: this.id, [TTL]: checkedTtl(ttl) };
        this.client.settle(REQUEUE, packets);
    }

    /** Takes it out of its queue; a record of it goes to `<queue>.dlq`. */
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
    #input = Buffer.alloc(0); // begins with a frame that is not whole
    #publishes = new Map(); // key -> { bytes, resolve, reject, timer }, without a receipt
    #consumers = new Map(); // queue -> { credit, waiting: Message[], wake }
    #unsent = []; // frames that end messages, for the next connection
    #timer = undefined; // of the next attempt to connect
    #pause = 0.1; // seconds before the next attempt to connect

    /** @param {string} address HOST:PORT of a listener with TTL (9100) */
    constructor(address = '127.0.0.1:9100', { timeout = 30 } = {}) {
        const [, host, port] = /^\[?(.+?)\]?:(\d+)$/.exec(address) ?? [];
        if (host === undefined) {
            throw new RangeError(`${address} is not HOST:PORT`);
        }
        this.#host = host;
        this.#port = Number(port);
        this.timeout = timeout; // seconds for a receipt, over all connections
    }

    /**
     * Resolves when the message is on the broker's disk. To try again after a timeout, give the same key.
     *
     * @throws {PublishRefused} nothing was stored
     */
    publish(queue, content, { ttl = 0, key = randomUUID() } = {}) {
        const packets = { [QUEUE]: checkedQueue(queue), [CONTENT]: content, [TTL]: checkedTtl(ttl), [ID]: key };
        if (this.#publishes.has(key) || Buffer.byteLength(key) < 1 || Buffer.byteLength(key) > 64) {
            throw new RangeError('a key has 1 to 64 bytes, and only one message has it at a time');
        }
        const bytes = frame(PUBLISH, packets);
        return new Promise((resolve, reject) => {
            const timer = setTimeout(() => {
                this.#publishes.delete(key);
                reject(new Error(`no receipt within ${this.timeout} s: the message may be stored`));
            }, this.timeout * 1000);
            this.#publishes.set(key, { bytes, resolve, reject, timer });
            this.#write(bytes);
        });
    }

    /** Yields messages for ever; at most `credit` of them are unacknowledged at a time. */
    async *consume(queue, credit = 1) {
        const consumer = { credit, waiting: [], wake: null };
        this.#consumers.set(checkedQueue(queue), consumer);
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
            if (this.#isConnected) { // 0 gives back what is not acknowledged
                this.#write(frame(CONSUME, { [QUEUE]: queue, [COUNT]: '0' }));
            }
        }
    }

    /** Sends 004, 005 or 006; without a connection, first on the next one. */
    settle(type, packets) {
        const bytes = frame(type, packets);
        if (this.#isConnected) {
            this.#socket.write(bytes);
        } else if (!this.#isClosed) {
            this.#unsent.push(bytes);
            this.#connect();
        }
    }

    /** Ends the connection after what was sent; what is not acknowledged goes back to its queue. */
    close() {
        this.#isClosed = true;
        clearTimeout(this.#timer);
        for (const { reject, timer } of this.#publishes.values()) {
            clearTimeout(timer);
            reject(new Error('closed before the receipt: the message may be stored'));
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
            this.#connect(); // which sends it: it is among the publishes or the consumers
        }
    }

    #connect() {
        if (this.#socket !== null || this.#isClosed) {
            return;
        }
        const socket = connect({ host: this.#host, port: this.#port, noDelay: true, keepAlive: true });
        this.#socket = socket;
        socket.on('connect', () => {
            this.#isConnected = true;
            for (const bytes of this.#unsent.splice(0)) { // nobody holds these messages yet
                socket.write(bytes);
            }
            for (const { bytes } of this.#publishes.values()) {
                socket.write(bytes);
            }
            for (const [queue, { credit }] of this.#consumers) {
                socket.write(frame(CONSUME, { [QUEUE]: queue, [COUNT]: String(credit) }));
            }
        });
        socket.on('data', (bytes) => this.#receive(bytes));
        socket.on('error', (error) => console.error(`phpmq: ${error.message}`));
        socket.on('close', () => this.#lost());
    }

    #lost() {
        this.#socket = null;
        this.#isConnected = false;
        this.#input = Buffer.alloc(0);
        for (const consumer of this.#consumers.values()) {
            consumer.waiting = []; // the broker dispatches them again
        }
        if (!this.#isClosed) {
            this.#timer = setTimeout(() => this.#connect(), this.#pause * (500 + Math.random() * 500));
            this.#pause = Math.min(this.#pause * 2, 10);
        }
    }

    // -- what the broker sends

    #receive(bytes) {
        this.#input = Buffer.concat([this.#input, bytes]);
        try {
            for (let size; (size = this.#frameSize()) > 0; this.#input = this.#input.subarray(size)) {
                this.#pause = 0.1; // it is a broker
            }
        } catch (error) {
            this.#socket.destroy(error);
        }
    }

    /** Handles the first frame of the input; returns its size, or 0 if it is not whole. */
    #frameSize() {
        const input = this.#input;
        if (input.length < 8) {
            return 0;
        }
        const header = /^H01(003|007)(\d\d)$/.exec(input.toString('latin1', 0, 8));
        if (header === null) {
            throw new Error('what answers is not a PHPMQ broker');
        }
        const packets = {};
        let at = 8;
        for (let left = Number(header[2]); left > 0; left--) {
            if (input.length < at + 32) {
                return 0;
            }
            const packet = /^P(\d\d)(\d{29})$/.exec(input.toString('latin1', at, at + 32));
            if (packet === null || Number(packet[2]) > MAX_PACKET_BYTES) {
                throw new Error('the broker sent a broken packet header');
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
            if (publish !== undefined) { // else it comes too late
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
        throw new RangeError('the first argument is publish, consume or requeue');
    }
    client.close();
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
    main(process.argv.slice(2)).catch((error) => {
        console.error(error.message);
        process.exit(1);
    });
}
