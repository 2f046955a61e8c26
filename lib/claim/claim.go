// Package claim lets workers of a group share out keys (relays, shards) among them. Who is there is
// told by heartbeats, who should work on what by rendezvous hashing with bounded load, and who does
// by claims, each taken with a compare-and-set whose revision fences the holder
// (docs/architecture.md, Six ideas).
//
// No worker trusts its clock against another's: a dead worker's record expires in the bucket, and
// with it goes the right to its claims. A worker that cannot renew its own record in time stops its
// work before that happens.
package claim

import (
	"cmp"
	"errors"
	"log/slog"
	"time"
)

// ErrNameTaken: another process that lives calls itself by this worker's name.
var ErrNameTaken = errors.New("another live worker has this name; NGIT_WORKER_NAME must differ")

// Options say who joins what.
type Options struct {
	Group       string        // of workers that share the same keys: proto.GroupRelays, proto.GroupShards
	Worker      string        // name, differs between processes
	Incarnation string        // differs between starts of one process
	Address     string        // host:port of the worker's internal HTTP, if others must reach it
	TTL         time.Duration // how long a silent worker is believed to live: proto.Sizing.WorkerTTL of the bus
	Max         int           // most keys that this worker claims; 0: any number
	// Yields reports whether a key gives way to others where this worker is full: it is taken last,
	// and left for one that does not yield. nil: none does. It is called by Work, whenever there is
	// something to decide.
	Yields func(key string) bool
	Log    *slog.Logger
}

func (o Options) withDefaults() Options {
	o.TTL = cmp.Or(o.TTL, 10*time.Second)
	if o.Yields == nil {
		o.Yields = func(string) bool { return false }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}
