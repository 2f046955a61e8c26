// Package bus is the way to NATS JetStream: embedded or remote by configuration, with the streams
// and buckets of proto made or updated, and the compare-and-set writes that the services stand on
// (docs/architecture.md, Six ideas).
package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
)

// Options says which bus to open.
type Options struct {
	Name   string // of this connection, seen in the server's reports
	Sizing proto.Sizing
	Log    *slog.Logger

	URL       string // of a NATS server; empty: one is embedded
	LoginFile string // "user:password" for URL, read at every connect
	Creds     string // credentials file for URL
	CA        string // file of the certificates that the server's must be signed by; empty: the system's
	Cert, Key string // files of our own certificate, for a server that wants one
	Role      string // whose inboxes to use where no login says it; empty: anybody's

	Dir      string // the embedded server's store; empty: in memory (with proto.Sizing.MemoryOnly) or a temporary folder
	Listen   string // where the embedded server listens for operators, "host:port"; empty or "none": nowhere
	Password string // of the user "operator" there, who may read everything; empty: everybody may do everything

	// Provisions: this process makes or updates every stream, bucket and consumer, and makes those
	// again that are in memory when NATS has lost them. One that embeds its server does so anyway.
	Provisions bool
	// Needs are the streams and buckets' streams that must be there before Open returns.
	Needs []string
	// Waiting is told what Open waits for, as often as that changes, and "" when it waits no
	// longer. Open waits as long as it takes, for the NATS server too. nil: a NATS server that is
	// not there is an error, and so is what cannot be provisioned within two minutes.
	Waiting func(what string)
	// NewLog is asked before a log is made because there is none. An error refuses it. nil: none.
	NewLog func() error

	pingEvery time.Duration // for tests; 0: the constant
}

// Bus is an open connection to JetStream, and the server behind it where that is embedded.
type Bus struct {
	Conn    *nats.Conn
	JS      jetstream.JetStream
	sizing  proto.Sizing
	refused refused
	server  *server.Server // embedded; nil: remote
	inside  string         // password of this process at the embedded server; empty: it needs none

	temporary string // the embedded server's folder, if it goes with the server

	open  context.Context // until Close
	close context.CancelFunc
	lost  chan error

	keeping sync.WaitGroup // what looks after the streams
}

// Open connects (starting the embedded server if there is no URL). Then it makes or updates every
// stream, bucket and consumer of proto, or waits until those are there that the process needs. It
// is idempotent; any number of processes may do it at once.
func Open(ctx context.Context, o Options) (*Bus, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	b := &Bus{lost: make(chan error, 1), sizing: o.Sizing}
	b.open, b.close = context.WithCancel(context.Background())
	conn := b.connectOptions(o)
	way, err := b.way(o)
	if err != nil {
		b.Close()
		return nil, err
	}
	wait := newWaiting(o)
	defer wait.over()
	err = wait.until(ctx, func(context.Context) error {
		if b.Conn, err = connect(o.URL, append(conn, way...)); err != nil {
			return connectError(o, err)
		}
		return nil
	}, func(err error) bool { return wait.endless || isSlow(err) })
	if err != nil {
		b.Close()
		return nil, err
	}
	if b.JS, err = openJetStream(b.Conn, o); err != nil {
		b.Close()
		return nil, err
	}
	if err := b.prepare(ctx, o, wait); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// way returns the options by which the connection reaches its server, and starts that if it is
// embedded.
func (b *Bus) way(o Options) ([]nats.Option, error) {
	if o.URL != "" {
		return remoteOptions(o)
	}
	if err := b.startEmbedded(o); err != nil {
		return nil, err
	}
	return b.embeddedOptions(), nil
}

// Close drains the connection, then stops the embedded server, which has then written everything.
func (b *Bus) Close() {
	b.close()
	b.keeping.Wait()
	if b.Conn != nil {
		b.Conn.Close()
	}
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
	if b.temporary != "" {
		os.RemoveAll(b.temporary)
	}
}

// ClientURL is where others reach the embedded server; empty if it listens nowhere or is not ours.
func (b *Bus) ClientURL() string {
	if b.server == nil || b.server.Addr() == nil {
		return ""
	}
	return b.server.ClientURL()
}

// Sizing is what the streams were made with.
func (b *Bus) Sizing() proto.Sizing { return b.sizing }

// Bucket opens a bucket of proto. While the bus is away, or has no such bucket, it waits until ctx
// ends.
func (b *Bus) Bucket(ctx context.Context, name string) (jetstream.KeyValue, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		kv, err := b.JS.KeyValue(attempt, name)
		cancel()
		if err == nil {
			return kv, nil
		}
		if !Passes(err) && !errors.Is(err, jetstream.ErrBucketNotFound) || ctx.Err() != nil {
			return nil, fmt.Errorf("open bucket %s: %w", name, err)
		}
		select {
		case <-time.After(attemptPause):
		case <-ctx.Done():
		}
	}
}

// wrongLastSequence is the code of an error for which the library has no name. Where a stream has
// replicas, the server refuses so who expects a sequence while another write is on its way.
const wrongLastSequence jetstream.ErrorCode = 10164

// IsConflict reports whether a compare-and-set, on a key of a bucket or a subject of a stream,
// found another revision than it expected.
func IsConflict(err error) bool {
	if errors.Is(err, jetstream.ErrKeyExists) {
		return true
	}
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == wrongLastSequence)
}
