// A PHPMQ client for Go 1.19 or newer: one file, the standard library only.
//
//	client := NewClient("127.0.0.1:9100")
//	defer client.Close()
//	err := client.Publish("orders", []byte(`{"order_id": 1042}`), 3600, "") // on the broker's disk
//	for message := range client.Consume("orders", 10) {
//		fmt.Println(string(message.Content))
//		message.Ack() // or message.Retry(5, err), message.Requeue(60), message.DeadLetter()
//	}
//
// The client connects automatically and reconnects after a loss. Publishes without a receipt are then
// repeated with their keys, so each is stored once; unacknowledged messages are delivered again. A publish
// fails at once if the address or TLS is wrong and the client was never connected. Nothing that listens may
// be a broker that starts later: that is logged, and tried again.
//
// With TLS, the address is tls://HOST:PORT, and NewClient takes a tls.Config with RootCAs and Certificates.
// SSL_CERT_FILE names a file of certificates to trust instead of the system's.
//
// Publish takes Options, such as Options{Delay: 60, UniqueKey: "invoice-7"}. A broker of an earlier version
// knows none of them, and is found out by its end of a connection that begins with a hello.
//
// As a program:
//
//	go run phpmq.go publish 127.0.0.1:9100 orders '{"order_id": 1042}' [TTL [OPTIONS]]
//	go run phpmq.go consume 127.0.0.1:9100 orders [MESSAGES]
//	go run phpmq.go requeue 127.0.0.1:9100 orders TTL
//	go run phpmq.go retry 127.0.0.1:9100 orders SECONDS
//
// where OPTIONS is JSON with the names of the broker's HTTP API, such as '{"delay_s": 60, "priority": 0}'.
//
// Copy the file into your project, change the package name and remove main.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	mathrand "math/rand"
	"net"
	"os"
	"reflect"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	publish, consume, dispatch, acknowledge = "001", "002", "003", "004"
	requeue, deadLetter, receipt            = "005", "006", "007"
	publishWithOptions, settleWithOptions   = "010", "011"
	consumeWithOptions, dispatchWithInfo    = "012", "013"
	hello, welcome                          = "014", "015"

	queuePacket, contentPacket = "01", "02"
	idPacket                   = "03"       // message id or publish key
	tlsAlert                   = "\x15\x03" // the first bytes of a listener with TLS to a client without it
	countPacket, ttlPacket     = "04", "05"
	optionsPacket              = "06" // a JSON object

	receiptTimeout = 30 * time.Second       // including reconnects
	dialTimeout    = 5 * time.Second        // for all addresses of the name
	nextAddress    = 500 * time.Millisecond // an address that has not answered by then is raced by the next one
	keepAlive      = 10 * time.Second       // between probes while the connection is idle
	unacknowledged = 90 * time.Second       // then, bytes or probes without an answer end the connection (Linux)
	writeTimeout   = 30 * time.Second
	closeTimeout   = 2 * time.Second // for the broker to read the remaining data
	maxPacketBytes = 1 << 30         // the broker never sends a larger packet
	maxContent     = 8 << 20         // the broker's limits.max_content
	helloEnds      = 2               // connections in a row that a broker of an earlier version ends after a hello
	noHello        = 10 * time.Minute
	silentEnds     = 3 // connections without a byte from the broker, which are then explained
)

// ErrTimeout means that no receipt arrived in time, so the message may be stored. To retry, publish
// the message again with the same key.
var ErrTimeout = errors.New("no receipt in time; the message may be stored")

// ErrClosed means that the client was closed before the receipt arrived.
var ErrClosed = errors.New("closed before the receipt arrived; the message may be stored")

// Refused is the broker's reason for not storing a message: paused, queue full, disk full …
type Refused struct{ Reason string }

func (refused Refused) Error() string { return "refused: " + refused.Reason }

// NotConnected means that the address, the port or TLS is wrong, so another attempt would fail as well.
type NotConnected struct{ Reason string }

func (wrong NotConnected) Error() string { return wrong.Reason }

// packet is a part of a frame.
type packet struct{ kind, content string }

// frame returns the bytes of a frame: a header of 8 bytes, then each packet with a header of 32 bytes.
func frame(kind string, packets ...packet) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "H01%s%02d", kind, len(packets))
	for _, one := range packets {
		fmt.Fprintf(&out, "P%s%029d", one.kind, len(one.content))
		out.WriteString(one.content)
	}
	return out.Bytes()
}

func checkQueue(queue string) error {
	longest := 255
	if strings.HasSuffix(queue, ".dlq") {
		longest = 259
	}
	isControl := func(r rune) bool { return unicode.IsControl(r) && r != '\n' }
	if len(queue) < 1 || len(queue) > longest || !utf8.ValidString(queue) || strings.IndexFunc(queue, isControl) >= 0 {
		return fmt.Errorf("a queue name must have 1 to 255 bytes of UTF-8 (259 with .dlq) and no control characters; "+
			"this one has %d bytes: %.40q", len(queue), queue)
	}
	return nil
}

// Options of a publish, as in the broker's HTTP API.
type Options struct {
	Delay     float64 `json:"delay_s,omitempty"`    // seconds until the message is ready
	DeliverAt int64   `json:"deliver_at,omitempty"` // Unix milliseconds; excludes Delay
	Priority  *int    `json:"priority,omitempty"`   // 0 (first) to 255; nil means 128
	Group     string  `json:"group,omitempty"`      // of which a queue delivers one message at a time
	UniqueKey string  `json:"unique_key,omitempty"` // while the queue has a message with it, nothing is stored
	IfExists  string  `json:"if_exists,omitempty"`  // "replace": that message is replaced
	TTL       int64   `json:"ttl_s"`                // set by Publish
}

// Info is what a broker tells of a delivery; it is empty if the broker is of an earlier version.
type Info struct {
	Attempt    int      `json:"attempt"` // 1 + failed ones
	Deliveries int      `json:"deliveries"`
	Hold       *float64 `json:"hold_s"` // seconds until the message returns; nil if there is no limit
	Priority   int      `json:"priority"`
	Group      string   `json:"group"`
	Age        float64  `json:"age_s"`
}

// Message is a received message. Settle it with Ack, Retry, Requeue or DeadLetter.
type Message struct {
	Queue, ID string
	Content   []byte
	TTL       int64 // remaining seconds; 0 means no expiry
	Info      Info
	client    *Client
}

// Retry lets the message wait for its next attempt, in delay seconds, because this one has failed. The broker
// counts the attempt and shows the error; one of an earlier version gets a copy, and then an acknowledgement.
func (m *Message) Retry(delay float64, failure error) {
	options := map[string]any{"action": "retry", "delay_s": delay}
	if m.Info.Attempt > 0 {
		options["attempt"] = m.Info.Attempt
	}
	if failure != nil {
		options["exception"] = fmt.Sprintf("%T", failure)
		options["error"] = fmt.Sprintf("%.500s", failure.Error())
	}
	bytes := frame(settleWithOptions, packet{queuePacket, m.Queue}, packet{idPacket, m.ID}, packet{optionsPacket, encode(options)})
	m.client.settleOr(bytes, func() {
		queue, ttl := m.Queue, m.TTL
		if delay > 0 {
			queue, ttl = queue+".retry", int64(math.Ceil(delay))
		}
		if err := m.client.Publish(queue, m.Content, ttl, m.ID+":copy"); err != nil {
			log.Printf("phpmq: the copy was not stored (%v)", err)
			return
		}
		m.Ack()
	})
}

func encode(options any) string {
	encoded, err := json.Marshal(options)
	if err != nil {
		panic(err) // a delay that is not a number
	}
	return string(encoded)
}

// Ack acknowledges the message as processed.
func (m *Message) Ack() {
	m.client.settle(frame(acknowledge, packet{queuePacket, m.Queue}, packet{idPacket, m.ID}))
}

// Requeue moves the message to the end of its queue with a TTL in seconds (0 means no expiry).
func (m *Message) Requeue(ttl int64) {
	seconds := strconv.FormatInt(ttl, 10)
	m.client.settle(frame(requeue, packet{queuePacket, m.Queue}, packet{idPacket, m.ID}, packet{ttlPacket, seconds}))
}

// DeadLetter removes the message from its queue and moves a record of it to <queue>.dlq.
func (m *Message) DeadLetter() {
	m.client.settle(frame(deadLetter, packet{queuePacket, m.Queue}, packet{idPacket, m.ID}))
}

type consumer struct {
	credit   int
	messages chan *Message // with a capacity of credit, so that sending never blocks
}

func (c *consumer) open(queue string, hasInfo bool) []byte {
	packets := []packet{{queuePacket, queue}, {countPacket, strconv.Itoa(c.credit)}}
	if hasInfo {
		return frame(consumeWithOptions, append(packets, packet{optionsPacket, `{"info":true}`})...)
	}
	return frame(consume, packets...)
}

type waiting struct {
	bytes      []byte
	size       int // of the content
	hasOptions bool
	done       chan error
}

type settlement struct {
	bytes     []byte
	otherwise func() // for a broker that does not know 011; nil if every broker knows the frame
}

// Client is a connection to a broker, created by NewClient. Its methods may be called concurrently.
type Client struct {
	address string
	config  *tls.Config
	silent  map[string]time.Time // when an address last did not answer; these are tried last

	mutex     sync.Mutex
	changed   *sync.Cond
	conn      stream // nil if not connected
	isReady   bool   // whether conn's broker has said which frames it knows
	frames    []int
	most      int // bytes of a message, as the broker's welcome says; 0 if it is unknown
	isClosed  bool
	outgoing  [][]byte           // frames for conn, in order
	publishes map[string]waiting // unconfirmed publishes by key
	consumers map[string]*consumer
	unsent    []settlement // to send on the next connection
	stopped   chan struct{}
	ended     chan struct{} // closed when run has returned
	asked     chan struct{} // a publish, so that the next attempt to connect is now

	wasConnected bool // so that a broker that restarts is waited for

	helloEnds    int // connections in a row that ended after a hello, without an answer
	noHelloUntil time.Time
}

// stream is a *net.TCPConn or a *tls.Conn.
type stream interface {
	net.Conn
	CloseWrite() error
}

// NewClient connects in the background to HOST:PORT or tls://HOST:PORT, which must be a listener with
// TTL (port 9100). A config may follow for TLS.
func NewClient(address string, config ...*tls.Config) *Client {
	client := &Client{
		address:   strings.TrimPrefix(address, "tls://"),
		asked:     make(chan struct{}, 1),
		silent:    map[string]time.Time{},
		publishes: map[string]waiting{},
		consumers: map[string]*consumer{},
		stopped:   make(chan struct{}),
		ended:     make(chan struct{}),
	}
	client.changed = sync.NewCond(&client.mutex)
	if client.address != address {
		client.config = append(config, &tls.Config{})[0].Clone()
	}
	go client.run()
	return client
}

// Publish returns when the message is on the broker's disk. An empty key means a random key; ttl is
// in seconds, and 0 means no expiry; one Options may follow. The error is a Refused, ErrTimeout, ErrClosed or, at once, a
// NotConnected, or describes an invalid argument.
func (c *Client) Publish(queue string, content []byte, ttl int64, key string, options ...Options) error {
	if err := checkQueue(queue); err != nil {
		return err
	}
	if ttl < 0 || len(key) > 64 {
		return errors.New("ttl must not be negative, and key must not be longer than 64 bytes")
	}
	if len(content) > maxContent {
		return fmt.Errorf("the message has %d bytes; the limit is %d: raise the broker's limits.max_content, and maxContent",
			len(content), maxContent)
	}
	if key == "" {
		random := make([]byte, 16)
		if _, err := rand.Read(random); err != nil {
			return err
		}
		key = hex.EncodeToString(random)
	}
	kind, last := publish, packet{ttlPacket, strconv.FormatInt(ttl, 10)}
	if len(options) > 0 {
		if delay := options[0].Delay; !(delay >= 0 && delay <= 1e9) {
			return fmt.Errorf("Delay is %v; it must be 0 or more seconds", delay)
		}
		options[0].TTL = ttl
		kind, last = publishWithOptions, packet{optionsPacket, encode(options[0])}
	}
	bytes := frame(kind, packet{queuePacket, queue}, packet{contentPacket, string(content)}, last, packet{idPacket, key})
	sent := waiting{bytes, len(content), len(options) > 0, make(chan error, 1)}
	c.mutex.Lock()
	if _, isKnown := c.publishes[key]; c.isClosed || isKnown {
		c.mutex.Unlock()
		if isKnown {
			return errors.New("a publish with this key is still waiting for its receipt")
		}
		return ErrClosed
	}
	c.publishes[key] = sent
	if c.isReady {
		c.publish(key, sent)
	}
	if c.conn == nil && !c.wasConnected {
		select {
		case c.asked <- struct{}{}:
		default:
		}
	}
	c.mutex.Unlock()
	timer := time.NewTimer(receiptTimeout)
	defer timer.Stop()
	select {
	case err := <-sent.done:
		return err
	case <-timer.C:
		c.mutex.Lock()
		delete(c.publishes, key)
		c.mutex.Unlock()
		return ErrTimeout
	}
}

// Consume returns a channel of messages, with at most credit of them unacknowledged at a time. Close
// closes the channel. An invalid queue name closes the channel immediately. Several goroutines may
// receive from the channel; a second call for the same queue returns the same channel.
func (c *Client) Consume(queue string, credit int) <-chan *Message {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if one := c.consumers[queue]; one != nil {
		return one.messages
	}
	one := &consumer{credit, make(chan *Message, credit)}
	if err := checkQueue(queue); err != nil || c.isClosed {
		close(one.messages)
		return one.messages
	}
	c.consumers[queue] = one
	c.write(one.open(queue, c.knows(consumeWithOptions)))
	return one.messages
}

// Close closes after sending pending data; unacknowledged messages return to their queues.
func (c *Client) Close() {
	c.mutex.Lock()
	if c.isClosed {
		c.mutex.Unlock()
		return
	}
	c.isClosed = true
	close(c.stopped)
	c.fail(ErrClosed)
	for queue, one := range c.consumers {
		close(one.messages)
		one.credit = 0 // a count of 0 returns unacknowledged messages to the queue
		c.write(one.open(queue, false))
	}
	c.publishes, c.consumers = nil, nil
	conn := c.conn
	c.changed.Broadcast()
	c.mutex.Unlock()
	select {
	case <-c.ended: // the broker has read everything
	case <-time.After(closeTimeout):
	}
	if conn != nil {
		conn.Close()
	}
}

// fail ends all unconfirmed publishes with an error; it returns whether there were any.
func (c *Client) fail(err error) bool {
	count := len(c.publishes)
	for key, sent := range c.publishes {
		sent.done <- err
		delete(c.publishes, key)
	}
	return count > 0
}

// largest returns the number of bytes of the largest unconfirmed message.
func (c *Client) largest() int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	size := 0
	for _, sent := range c.publishes {
		if sent.size > size {
			size = sent.size
		}
	}
	return size
}

// settle sends 004, 005 or 006 now, or first on the next connection if not connected.
func (c *Client) settle(bytes []byte) { c.settleOr(bytes, nil) }

// settleOr does the same with a 011; otherwise is called for a broker that does not know it.
func (c *Client) settleOr(bytes []byte, otherwise func()) {
	c.mutex.Lock()
	isKnown := otherwise == nil || c.knows(settleWithOptions)
	if c.isReady && isKnown {
		c.write(bytes)
	} else if !c.isReady && !c.isClosed {
		c.unsent = append(c.unsent, settlement{bytes, otherwise})
	}
	mustCopy := c.isReady && !isKnown
	c.mutex.Unlock()
	if mustCopy {
		otherwise()
	}
}

func (c *Client) publish(key string, sent waiting) {
	isTooLarge := c.most > 0 && sent.size > c.most
	if !isTooLarge && (!sent.hasOptions || c.knows(publishWithOptions)) {
		c.write(sent.bytes)
		return
	}
	delete(c.publishes, key)
	if isTooLarge {
		sent.done <- fmt.Errorf("the message has %d bytes; the limit of %s is %d: raise its limits.max_content",
			sent.size, c.address, c.most)
		return
	}
	sent.done <- fmt.Errorf("the broker at %s is of an earlier version, which knows no options; "+
		"upgrade it, or publish with a TTL only", c.address)
}

func (c *Client) knows(kind string) bool {
	number, _ := strconv.Atoi(kind)
	for _, known := range c.frames {
		if known == number {
			return true
		}
	}
	return false
}

// write sends on the current connection, if it is ready. After a loss, ready sends the frame again, or the
// broker has already requeued the message.
func (c *Client) write(bytes []byte) {
	if c.isReady {
		c.outgoing = append(c.outgoing, bytes)
		c.changed.Broadcast()
	}
}

// -- the connection

func (c *Client) run() {
	defer close(c.ended)
	pause := 100 * time.Millisecond
	isAway := false // so that a loss is logged once
	for silent := 0; ; {
		conn, err := c.dial()
		if err == nil {
			if isAway {
				log.Printf("phpmq: connected to %s again", c.address)
			}
			isAway = false
			began := time.Now()
			var isBroker bool
			if isBroker, err = c.serve(conn); isBroker {
				pause = 100 * time.Millisecond
			}
			c.noteEnd(isBroker)
			if silent++; isBroker || time.Since(began) > 500*time.Millisecond {
				c.mutex.Lock()
				c.wasConnected = true
				c.mutex.Unlock()
			} else if silent >= silentEnds && !c.wasConnected {
				err = fmt.Errorf("%s ended %d connections without an answer (%w); it may not allow this address "+
					"(tcp.allow), need a client certificate (tcp.tls_client_ca), or have a limits.max_content below the %d bytes of a message",
					c.address, silent, err, c.largest())
			}
		}
		select {
		case <-c.stopped:
			return
		default:
			if isTold := c.tell(err); c.wasConnected && !isAway { // only this goroutine sets it
				isAway = true
				log.Printf("phpmq: the connection to %s is lost (%v); trying again", c.address, err)
			} else if !isTold && !isAway && silent <= silentEnds {
				log.Printf("phpmq: %v", err)
			}
		}
		select {
		case <-c.stopped:
			return
		case <-c.asked:
		case <-time.After(pause/2 + time.Duration(mathrand.Int63n(int64(pause/2)))):
			if pause *= 2; pause > 10*time.Second {
				pause = 10 * time.Second
			}
		}
	}
}

// tell ends all publishes with a permanent error, unless the client was connected before. It returns
// whether nobody else needs to know.
func (c *Client) tell(err error) bool {
	var wrong NotConnected
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return errors.As(err, &wrong) && !c.wasConnected && (c.fail(err) || len(c.consumers) == 0)
}

// explain returns a NotConnected for an error that another attempt would meet, too.
func (c *Client) explain(err error) error {
	var name *net.DNSError
	var header tls.RecordHeaderError
	var authority x509.UnknownAuthorityError
	var other x509.HostnameError
	var invalid x509.CertificateInvalidError
	noTLS := fmt.Sprintf("use %s without tls://, or set tls_cert and tls_key of that listener", c.address)
	switch {
	case errors.As(err, &name) && name.IsNotFound:
		return NotConnected{fmt.Sprintf("the name %s is unknown; check the address", name.Name)}
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no broker listens on %s; start it, or correct the port", c.address)
	case errors.As(err, &header):
		return NotConnected{fmt.Sprintf("%s does not use TLS; %s", c.address, noTLS)}
	case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET):
		return NotConnected{fmt.Sprintf("%s ended the TLS handshake: it may not allow this address (tcp.allow), or not use TLS "+
			"(then %s)", c.address, noTLS)}
	case errors.As(err, &authority):
		return NotConnected{fmt.Sprintf("the certificate of %s is not trusted (%v); pass its authority with "+
			"&tls.Config{RootCAs: …} or SSL_CERT_FILE=FILE", c.address, authority)}
	case errors.As(err, &other):
		return NotConnected{fmt.Sprintf("the certificate of %s is for another name (%v); connect with one of its names", c.address, other)}
	case errors.As(err, &invalid):
		return NotConnected{fmt.Sprintf("the certificate of %s is not valid (%v); renew the tls_cert of the listener", c.address, invalid)}
	}
	return err
}

// secure completes the TLS handshake, if the client uses TLS.
func (c *Client) secure(conn net.Conn, host string) (stream, error) {
	if c.config == nil {
		return conn.(*net.TCPConn), nil
	}
	if c.config.ServerName == "" {
		c.config.ServerName = host
	}
	secured := tls.Client(conn, c.config)
	conn.SetDeadline(time.Now().Add(dialTimeout))
	if err := secured.Handshake(); err != nil {
		conn.Close()
		return nil, c.explain(err)
	}
	conn.SetDeadline(time.Time{})
	return secured, nil
}

// dial connects to the first address of the name that answers.
func (c *Client) dial() (stream, error) {
	host, port, err := net.SplitHostPort(c.address)
	if number, wrong := strconv.Atoi(port); err != nil || wrong != nil || host == "" || number < 1 || number > 65535 {
		return nil, NotConnected{c.address + " is not a valid address; use HOST:PORT or tls://HOST:PORT, with a port up to 65535"}
	}
	limit, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(limit, host)
	if err != nil {
		return nil, c.explain(err)
	}
	sort.SliceStable(addresses, func(a, b int) bool {
		return c.silent[addresses[a]].Before(c.silent[addresses[b]])
	})
	type attempt struct {
		address string
		conn    net.Conn
		err     error
	}
	attempts := make(chan attempt)
	begun, open := 0, 0
	defer func() { // cancel ends those that are still open
		go func(open int) {
			for ; open > 0; open-- {
				if late := <-attempts; late.err == nil {
					late.conn.Close()
				}
			}
		}(open)
	}()
	for begun < len(addresses) || open > 0 {
		var next <-chan time.Time
		if begun < len(addresses) {
			address := addresses[begun]
			go func() {
				dialer := net.Dialer{KeepAlive: keepAlive}
				conn, err := dialer.DialContext(limit, "tcp", net.JoinHostPort(address, port))
				attempts <- attempt{address, conn, err}
			}()
			begun, open, next = begun+1, open+1, time.After(nextAddress)
		}
		select {
		case <-next:
		case <-c.stopped:
			return nil, ErrClosed
		case ended := <-attempts:
			open--
			if err = ended.err; err != nil {
				c.silent[ended.address] = time.Now()
				continue
			}
			for _, address := range addresses[:begun] {
				c.silent[address] = time.Now()
			}
			delete(c.silent, ended.address)
			conn := ended.conn.(*net.TCPConn)
			limitUnacknowledged(conn)
			return c.secure(conn, host)
		}
	}
	return nil, c.explain(err)
}

// limitUnacknowledged sets TCP_USER_TIMEOUT. Without it, Linux sends unacknowledged bytes again for 15
// minutes before it gives up, and no keep-alive probes meanwhile.
func limitUnacknowledged(conn *net.TCPConn) {
	raw, err := conn.SyscallConn()
	if err != nil || runtime.GOOS != "linux" {
		return
	}
	raw.Control(func(fd uintptr) {
		set := reflect.ValueOf(syscall.SetsockoptInt) // its first parameter has another type on Windows
		const tcp, userTimeout = 6, 18
		set.Call([]reflect.Value{reflect.ValueOf(fd).Convert(set.Type().In(0)), reflect.ValueOf(tcp),
			reflect.ValueOf(userTimeout), reflect.ValueOf(int(unacknowledged / time.Millisecond))})
	})
}

// serve reads a connection until it ends, and returns whether a broker sent a frame.
func (c *Client) serve(conn stream) (isBroker bool, err error) {
	defer conn.Close()
	if !c.begin(conn) {
		return false, ErrClosed
	}
	defer c.lost()
	go c.send(conn) // reading never waits for writing; otherwise, both sides could block
	for reader := bufio.NewReader(conn); ; isBroker = true {
		if start, _ := reader.Peek(2); string(start) == tlsAlert {
			return isBroker, NotConnected{fmt.Sprintf("%s uses TLS; use tls://%s, with RootCAs for a private authority", c.address, c.address)}
		} else if string(start) == "HT" {
			return isBroker, NotConnected{c.address + " is not a PHPMQ broker: it answers in HTTP, as the port of the admin does; " +
				"use the port of PHPMQ, such as 9100"}
		}
		kind, packets, err := readFrame(reader)
		if err != nil {
			return isBroker, err
		}
		c.handle(kind, packets)
	}
}

func (c *Client) send(conn stream) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for c.conn == conn {
		if len(c.outgoing) == 0 && c.isClosed {
			conn.CloseWrite()
			return
		}
		if len(c.outgoing) == 0 {
			c.changed.Wait()
			continue
		}
		batch := net.Buffers(c.outgoing)
		c.outgoing = nil
		c.mutex.Unlock()
		conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, err := batch.WriteTo(conn)
		if err != nil {
			conn.Close() // ends serve
		}
		c.mutex.Lock()
		if err != nil {
			return
		}
	}
}

func (c *Client) begin(conn stream) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.isClosed {
		return false
	}
	c.conn = conn
	if time.Now().Before(c.noHelloUntil) {
		c.ready(nil)
		return true
	}
	host, _ := os.Hostname() // the answer is the only way to know what the broker understands
	facts := map[string]any{"name": "phpmq.go", "version": "0.2.0", "pid": os.Getpid(), "host": host}
	c.outgoing = append(c.outgoing, frame(hello, packet{idPacket, "hello"}, packet{optionsPacket, encode(facts)}))
	return true
}

// ready sends what waits for a connection whose broker knows these frames.
func (c *Client) ready(frames []int) {
	c.isReady, c.frames = true, frames
	for _, one := range c.unsent { // before other consumers receive these messages
		if one.otherwise == nil || c.knows(settleWithOptions) {
			c.write(one.bytes)
		} else {
			go one.otherwise()
		}
	}
	c.unsent = nil
	for key, sent := range c.publishes {
		c.publish(key, sent)
	}
	for queue, one := range c.consumers {
		c.write(one.open(queue, c.knows(consumeWithOptions)))
	}
	c.changed.Broadcast()
}

// noteEnd counts connections that ended without an answer: a broker of an earlier version ends those that
// begin with a hello.
func (c *Client) noteEnd(isBroker bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	switch hasHello := time.Now().After(c.noHelloUntil); {
	case isBroker && hasHello:
		c.helloEnds = 0
	case isBroker:
	case !hasHello: // the hello was not the reason
		c.helloEnds, c.noHelloUntil = 0, time.Time{}
	default:
		if c.helloEnds++; c.helloEnds >= helloEnds {
			c.helloEnds, c.noHelloUntil = 0, time.Now().Add(noHello)
		}
	}
}

func (c *Client) lost() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.conn, c.outgoing, c.isReady = nil, nil, false
	c.changed.Broadcast()
	for _, one := range c.consumers {
		for len(one.messages) > 0 { // the broker delivers these messages again
			select {
			case <-one.messages:
			default:
			}
		}
	}
}

// -- what the broker sends

func readFrame(reader io.Reader) (kind string, packets map[string][]byte, err error) {
	header := make([]byte, 8)
	if _, err = io.ReadFull(reader, header); err != nil {
		return "", nil, err
	}
	kind = string(header[3:6])
	count, err := strconv.ParseUint(string(header[6:]), 10, 8)
	isKnown := kind == dispatch || kind == receipt || kind == dispatchWithInfo || kind == welcome
	if string(header[:3]) != "H01" || !isKnown || err != nil {
		return "", nil, fmt.Errorf("the server is not a PHPMQ broker: it sent %q", header)
	}
	packets = map[string][]byte{}
	for ; count > 0; count-- {
		head := make([]byte, 32)
		if _, err = io.ReadFull(reader, head); err != nil {
			return "", nil, err
		}
		size, err := strconv.ParseUint(string(head[3:]), 10, 63)
		if head[0] != 'P' || err != nil || size > maxPacketBytes {
			return "", nil, fmt.Errorf("the broker sent an invalid packet header: %q", head)
		}
		content := make([]byte, size)
		if _, err = io.ReadFull(reader, content); err != nil {
			return "", nil, err
		}
		packets[string(head[1:3])] = content
	}
	return kind, packets, nil
}

func (c *Client) handle(kind string, packets map[string][]byte) {
	queue, id := string(packets[queuePacket]), string(packets[idPacket])
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if kind == welcome {
		var facts struct {
			Frames []int
			Most   int `json:"max_content"`
		}
		if json.Unmarshal(packets[optionsPacket], &facts) == nil && !c.isReady {
			c.most = facts.Most
			c.ready(facts.Frames)
		}
		return
	}
	if kind == receipt {
		if sent, isKnown := c.publishes[id]; isKnown { // otherwise, the receipt is too late
			delete(c.publishes, id)
			if reason, isRefused := packets[contentPacket]; isRefused {
				sent.done <- Refused{string(reason)}
			} else {
				sent.done <- nil
			}
		}
		return
	}
	one := c.consumers[queue]
	if one == nil {
		return
	}
	ttl, _ := strconv.ParseInt(string(packets[ttlPacket]), 10, 64) // 0 if missing
	message := &Message{Queue: queue, ID: id, Content: packets[contentPacket], TTL: ttl, client: c}
	if kind == dispatchWithInfo {
		json.Unmarshal(packets[optionsPacket], &message.Info)
	}
	select {
	case one.messages <- message:
	default: // exceeds the credit, so the server is not our broker
	}
}

// -- the program

func run(arguments []string) error {
	if len(arguments) < 3 {
		return errors.New("usage: phpmq publish|consume|requeue|retry HOST:PORT QUEUE …")
	}
	command, queue, rest := arguments[0], arguments[2], arguments[3:]
	number := func(at int, otherwise int64) (int64, error) {
		if len(rest) <= at {
			return otherwise, nil
		}
		return strconv.ParseInt(rest[at], 10, 64)
	}
	client := NewClient(arguments[1])
	defer client.Close()
	if command == "publish" && len(rest) > 0 {
		ttl, err := number(1, 0)
		var options []Options
		if err == nil && len(rest) > 2 {
			options = make([]Options, 1)
			err = json.Unmarshal([]byte(rest[2]), &options[0])
		}
		if err == nil {
			err = client.Publish(queue, []byte(rest[0]), ttl, "", options...)
		}
		if err == nil {
			fmt.Println("stored")
		}
		return err
	}
	left, err := number(0, 1)
	if err != nil || command != "consume" && command != "requeue" && command != "retry" {
		return errors.New("use publish with a content, consume with a number, requeue with a TTL, or retry with seconds")
	}
	ttl := left
	for message := range client.Consume(queue, 1) {
		note := ""
		if message.TTL > 0 {
			note = fmt.Sprintf("  (%d s left)", message.TTL)
		}
		fmt.Printf("%s%s\n", message.Content, note)
		if command == "requeue" {
			message.Requeue(ttl)
			return nil
		}
		if command == "retry" {
			message.Retry(float64(ttl), errors.New("the retry command"))
			return nil
		}
		message.Ack()
		if left--; left == 0 {
			return nil
		}
	}
	return checkQueue(queue)
}

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
