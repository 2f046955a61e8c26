// Package bus is the way to NATS JetStream: embedded or remote by configuration, with the streams
// and buckets of proto made or updated, the compare-and-set writes of the services, and the
// follower of a stream (docs/architecture.md, Six ideas). It does not know what a message means,
// nor when a write that failed should be tried again.
package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
)

// Options says which bus to open. A process that provisions, or embeds its server, must set Sizing.
// Every other field may be zero.
type Options struct {
	// Name is that of this connection in the server's reports; empty: none.
	Name string
	// Sizing says how streams are made. It has no default here: see proto.DefaultSizing.
	Sizing proto.Sizing
	// Log is told what the connection and the embedded server meet with; nil: nothing is.
	Log *slog.Logger

	// URL is that of a NATS server, or several with commas between; empty: one is embedded.
	URL string
	// LoginFile has "user:password" for URL, and is read at every connect; empty: no login.
	LoginFile string
	// Creds is a file of NATS credentials for URL; empty: none.
	Creds string
	// CA is a file of certificates by one of which the server's must be signed; empty: the system's.
	CA string
	// Cert and Key are the files of our own certificate, for a server that wants one; empty: none.
	Cert, Key string
	// Role says whose inboxes to use where no login says it; empty: anybody's.
	Role string

	// Dir is where the embedded server stores; empty: a temporary folder, which goes with the server.
	// With proto.Sizing.MemoryOnly no stream is there.
	Dir string
	// Listen is where the embedded server listens for operators, "host:port"; empty or "none":
	// nowhere.
	Listen string
	// Password is that of the user "operator" there, who may read everything; empty: everybody may do
	// everything.
	Password string

	// Disk is looked at for room while a server is embedded, unless proto.Sizing.MemoryOnly.
	Disk Disk

	// Provisions: this process makes or updates every stream, bucket and consumer, and makes those
	// again that are in memory when NATS has lost them. One that embeds its server does so anyway.
	// false: it makes nothing.
	Provisions bool
	// Needs are the streams and buckets' streams that must be there before Open returns; nil: none.
	Needs []string
	// Waiting is told what Open waits for. Open waits as long as it takes, for the NATS server too.
	// nil: a NATS server that is not there is an error, and so is what cannot be provisioned within
	// two minutes.
	Waiting func(what string)
	// NewLog is asked before a log is made because there is none. An error refuses it. nil: it is
	// made.
	NewLog func() error
}

// Bus is an open connection to JetStream, and the server behind it where that is embedded.
type Bus struct {
	Conn    *nats.Conn
	JS      jetstream.JetStream
	sizing  proto.Sizing
	refused atomic.Uint64

	server    *server.Server // embedded; nil: remote
	inside    string         // password of this process at the embedded server; empty: it needs none
	temporary string         // the embedded server's folder, if it goes with the server

	open    context.Context // until Close
	close   context.CancelFunc
	lost    chan error
	keeping sync.WaitGroup // what looks after the streams and the disk
	room
}

func newBus(o *Options) *Bus {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	b := &Bus{lost: make(chan error, 1), sizing: o.Sizing, room: newRoom(o.Disk)}
	b.open, b.close = context.WithCancel(context.Background())
	return b
}

// Open connects (starting the embedded server if there is no URL). Then it makes or updates every
// stream, bucket and consumer of proto, or waits until those are there that the process needs. It
// is idempotent; any number of processes may do it at once.
func Open(ctx context.Context, o Options) (_ *Bus, err error) {
	o.Sizing.ClaimsInMemory = o.URL == ""
	b := newBus(&o)
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if o.URL == "" {
		if err := b.startEmbedded(o); err != nil {
			return nil, err
		}
	}
	o.Password = "" // of the embedded server
	wait := newWaiting(o)
	slow := func(err error) bool { return o.Waiting != nil || isSlow(err) }
	if err := wait.until(ctx, func(context.Context) error { return b.connect(o) }, slow); err != nil {
		return nil, err
	}
	if err := b.prepare(ctx, o, wait); err != nil {
		return nil, err
	}
	return b, nil
}

// Look connects to a NATS server to read what is there: it makes and changes nothing. With a
// Password it is a user of an embedded server: Role, or else the operator. timeout bounds the
// connecting. A connection that is lost later is taken up again until Close.
func Look(o Options, timeout time.Duration) (*Bus, error) {
	b := newBus(&o)
	if err := b.connect(o, nats.Timeout(timeout)); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
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

// Refused is how many times NATS has refused what this process wanted to publish or to subscribe
// to, because its user may not.
func (b *Bus) Refused() uint64 { return b.refused.Load() }

// Lost returns an error when this process cannot go on: NATS has lost a stream that was on disk, or
// has another one in its place, or the embedded server cannot write. The process should end and say
// so: what it knows is of a log that is not there any more.
func (b *Bus) Lost() <-chan error { return b.lost }

func (b *Bus) lose(err error) {
	select {
	case b.lost <- err:
	default: // another reason was first
	}
}

// Bucket opens a bucket of proto. While the bus is away, or has no such bucket, it waits until ctx
// ends.
func (b *Bus) Bucket(ctx context.Context, name string) (kv jetstream.KeyValue, err error) {
	err = newWaiting(Options{Waiting: func(string) {}, Log: slog.New(slog.DiscardHandler)}).until(ctx,
		func(ctx context.Context) error {
			kv, err = b.JS.KeyValue(ctx, name)
			return err
		}, func(err error) bool { return IsTransient(err) || errors.Is(err, jetstream.ErrBucketNotFound) })
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", name, err)
	}
	return kv, nil
}

// StoreLimit is how many bytes JetStream may store on disk for this process's account; 0: no limit
// is known.
func (b *Bus) StoreLimit(ctx context.Context) (int64, error) {
	if b.server != nil {
		return b.server.JetStreamConfig().MaxStore, nil
	}
	info, err := b.JS.AccountInfo(ctx)
	if err != nil {
		return 0, fmt.Errorf("read JetStream's limits: %w", err)
	}
	return max(0, info.Limits.MaxStore), nil
}
