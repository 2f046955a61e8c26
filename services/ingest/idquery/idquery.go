// Package idquery answers the micro service grasp.query.ids: which events for a filter need not be fetched, because they are
// accepted, held, or were rejected within the last days (spec/sync.md, Historic sync).
package idquery

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/eventdb"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/held"
	"tendril.dev/services/ingest/rejections"
)

// Bounds of a query.
const (
	maxRequest = 512 << 10        // bytes of the filter
	chunkSize  = 2000             // entries a message
	maxEntries = 5_000_000        // entries an answer
	timeout    = 60 * time.Second // for the whole answer
	atOnce     = 4                // queries; more wait their turn in the subscription
	maxWaiting = 256              // queries that wait; more are dropped by NATS
)

// Known is where the ids come from.
type Known struct {
	Index    *eventdb.DB
	Held     *held.Set
	Rejected *rejections.Index
}

// Entry is one id of an answer, with the time that reconciliation sorts by.
type Entry struct {
	ID        string          `json:"id"`
	CreatedAt nostr.Timestamp `json:"created_at"`
}

// Serve answers queries until ctx ends. Every replica does; NATS gives each query to one of them.
//
// The request is a nostr filter as JSON. The answer is a stream of messages to its reply subject, each a JSON array of entries, in no
// particular order and each id once in most cases; an empty array ends it. An answer that breaks off ends with an error of the micro
// protocol instead.
func Serve(ctx context.Context, conn *nats.Conn, known Known, log *slog.Logger) error {
	return nil
}

var _ = fmt.Sprint
var _ = hex.EncodeToString
var _ = json.Marshal
var _ = micro.AddService
var _ = proto.SubjectQueryIDs
