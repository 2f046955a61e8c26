// Package bus is the way to NATS JetStream: embedded or remote by configuration, with the streams and buckets of proto made or
// updated, and the compare-and-set writes that the services stand on (design.md, fourth and fifth idea).
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
	URL    string // of a NATS server; empty: one is embedded
	Creds  string // credentials file for URL
	Name   string // of this connection, seen in the server's reports
	Dir    string // the embedded server's store; empty: in memory (with proto.Sizing.MemoryOnly) or a temporary folder
	Listen string // where the embedded server listens for operators, "host:port"; empty or "none": nowhere
	Sizing proto.Sizing
	Log    *slog.Logger
}

// Bus is an open connection to JetStream, and the server behind it where that is embedded.
type Bus struct {
	Conn   *nats.Conn
	JS     jetstream.JetStream
	sizing proto.Sizing
	server *server.Server // nil: remote

	temporary string // the embedded server's folder, if it goes with the server

	open  context.Context // until Close
	close context.CancelFunc
	lost  chan error

	mu     sync.Mutex
	memory map[string]time.Time // when the memory streams were made that were found at the start
}

// Open connects (starting the embedded server if there is no URL) and makes or updates every stream, bucket and consumer of
// proto. It is idempotent; any number of processes may do it at once.
func Open(ctx context.Context, o Options) (*Bus, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	b := &Bus{memory: map[string]time.Time{}, lost: make(chan error, 1), sizing: o.Sizing}
	b.open, b.close = context.WithCancel(context.Background())
	conn := []nats.Option{
		nats.Name(o.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.RetryOnFailedConnect(false),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				o.Log.Warn("bus disconnected", "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) {
			o.Log.Info("bus reconnected")
			go b.checkMemory(b.open)
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			o.Log.Warn("bus error", "subject", subject, "error", err)
		}),
	}
	url := o.URL
	if url == "" {
		if err := b.startEmbedded(o); err != nil {
			b.Close()
			return nil, err
		}
		conn = append(conn, nats.InProcessServer(b.server))
	} else if o.Creds != "" {
		conn = append(conn, nats.UserCredentials(o.Creds))
	}
	var err error
	if b.Conn, err = nats.Connect(url, conn...); err != nil {
		b.Close()
		return nil, fmt.Errorf("connect to NATS %s: %w", Redacted(url), err)
	}
	if b.JS, err = jetstream.New(b.Conn); err != nil {
		b.Close()
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	if err := b.provision(ctx); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Close drains the connection, then stops the embedded server, which has then written everything.
func (b *Bus) Close() {
	b.close()
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

// Bucket opens a bucket of proto.
func (b *Bus) Bucket(ctx context.Context, name string) (jetstream.KeyValue, error) {
	kv, err := b.JS.KeyValue(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", name, err)
	}
	return kv, nil
}

// IsConflict reports whether a compare-and-set, on a key of a bucket or a subject of a stream, found another revision than it expected.
func IsConflict(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence
}
