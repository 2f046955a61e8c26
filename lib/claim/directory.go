package claim

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// claimed is a claim with the revision that fences it.
type claimed struct {
	proto.Claim
	revision uint64
	// vanished is when it was heard that the claim is gone though its holder has not let it go;
	// zero: it is there. The holder hears that too, and needs a moment to stop. Who the holder is
	// may not be known: the claim may be gone before it was read here.
	vanished time.Time
}

// heard is a worker and when its last heartbeat was heard.
type heard struct {
	proto.Worker
	at time.Time
}

// by reports whether a worker made the claim. The zero worker made none.
func (c claimed) by(w proto.Worker) bool { return c.Worker != "" && w.Name == c.Worker }

// expired is why a bucket says that a record has gone by itself: no sign of its worker.
const expired = "MaxAge"

// Directory knows who is there in a group and who holds which key.
type Directory struct {
	group   string
	log     *slog.Logger
	stop    context.CancelFunc
	changed chan struct{} // of capacity 1: something may be different
	// Ended has how the following of a bucket ended: with an error, after which what is known of the
	// group is not true, or nil, after Close.
	Ended chan error
	// silence is how long a worker is believed to live since its last heartbeat was heard here. The
	// bucket tells of a death sooner, but not to a follower that was away at that time.
	silence time.Duration
	ttl     time.Duration
	began   time.Time
	self    string                // the own worker; empty: this process only looks
	ownGone func(revision uint64) // called when the own record is gone; nil: never

	mu      sync.Mutex
	workers map[string]heard
	signs   map[string]time.Time // when a worker's last sign of life was heard, for a TTL
	claims  map[string]claimed   // by key without the group
}

// Watch reads who holds what, and follows it until Close: the end of ctx ends the reading only.
func Watch(ctx context.Context, b *bus.Bus, group string, log *slog.Logger) (*Directory, error) {
	return watch(ctx, b, Options{Group: group, Log: log}, nil)
}

func watch(ctx context.Context, b *bus.Bus, o Options, ownGone func(revision uint64)) (*Directory, error) {
	ttl := b.Sizing().WorkerTTL
	d := &Directory{
		group: o.Group, log: o.Log, changed: make(chan struct{}, 1), Ended: make(chan error, 2),
		silence: 2 * ttl, ttl: ttl, began: time.Now(), self: o.Worker, ownGone: ownGone,
		workers: map[string]heard{}, signs: map[string]time.Time{}, claims: map[string]claimed{},
	}
	var lasting context.Context
	lasting, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	for bucket, hear := range map[string]func(string, bus.Message) error{
		proto.BucketWorkers: d.hearWorker, proto.BucketClaims: d.hearClaim,
	} {
		if err := d.follow(ctx, lasting, b, bucket, hear); err != nil {
			d.stop()
			return nil, err
		}
	}
	return d, nil
}

// follow reads a bucket as it stands, unless ctx ends before, and follows it until lasting ends.
func (d *Directory) follow(ctx, lasting context.Context, b *bus.Bus, bucket string, hear func(string, bus.Message) error) error {
	prefix := proto.KVSubject(bucket, "")
	what := bus.Reading{Stream: proto.KVStream(bucket), Filter: prefix + proto.ClaimKey(d.group, ">")}
	f := bus.NewFollower(b.JS, what, d.log, func(messages []bus.Message) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, m := range messages {
			_, key, err := proto.ParseClaimKey(m.Subject[len(prefix):])
			if err == nil {
				err = hear(key, m)
			}
			if err != nil {
				d.log.Error("a record cannot be read", "subject", m.Subject, "error", err)
			}
		}
		d.tell()
		return nil
	})
	if err := f.ReadAll(ctx); err != nil {
		return fmt.Errorf("read bucket %s: %w", bucket, err)
	}
	go func() { d.Ended <- f.Run(lasting) }()
	return nil
}

func (d *Directory) hearWorker(name string, m bus.Message) error {
	var w proto.Worker
	delete(d.workers, name)
	if m.Header.Get(jetstream.MarkerReasonHeader) != expired {
		d.sign(name)
	}
	if m.Deletes() {
		if name == d.self && d.ownGone != nil {
			d.ownGone(m.Seq)
		}
		return nil
	}
	if err := json.Unmarshal(m.Data, &w); err != nil {
		return err
	}
	d.workers[name] = heard{w, time.Now()}
	return nil
}

// sign notes that a worker was there until now. d.mu is held.
func (d *Directory) sign(name string) {
	maps.DeleteFunc(d.signs, func(_ string, at time.Time) bool { return time.Since(at) > d.ttl })
	d.signs[name] = time.Now()
}

// quietIn is after how long nothing was heard of a worker for a TTL, counted at the earliest from
// when this process began to listen. Then the lease of that worker has ended, however its record
// went: the lease ends within a TTL after the last heartbeat was begun.
func (d *Directory) quietIn(name string) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, heard := d.signs[name]
	if !heard {
		last = d.began
	}
	return time.Until(last.Add(d.ttl))
}

// hearClaim keeps the revision of a claim that cannot be read too: it is free.
func (d *Directory) hearClaim(key string, m bus.Message) error {
	c, before := claimed{revision: m.Seq}, d.claims[key]
	delete(d.claims, key)
	switch {
	case m.Deletes() && m.Header.Get(proto.HeaderReleased) == "":
		before.revision, before.vanished = m.Seq, time.Now()
		d.claims[key] = before
		time.AfterFunc(d.silence, d.tell)
		return nil
	case m.Deletes():
		return nil
	}
	err := json.Unmarshal(m.Data, &c.Claim)
	d.claims[key] = c
	return err
}

// tell says that something may be different.
func (d *Directory) tell() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// live is a live worker by its name, or the zero worker. d.mu is held.
func (d *Directory) live(name string) proto.Worker {
	if w, there := d.workers[name]; there && time.Since(w.at) < d.silence {
		return w.Worker
	}
	return proto.Worker{}
}

// Close ends the following.
func (d *Directory) Close() { d.stop() }

// Holder is the live worker that holds a key; false: none does at this moment.
func (d *Directory) Holder(key string) (proto.Worker, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.claims[key]
	w := d.live(c.Worker)
	return w, c.by(w) && c.vanished.IsZero()
}

// Lives reports whether a worker is live.
func (d *Directory) Lives(worker proto.Worker) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.live(worker.Name).Name != ""
}

// Workers are the live workers of the group, by name.
func (d *Directory) Workers() map[string]proto.Worker {
	d.mu.Lock()
	defer d.mu.Unlock()
	live := map[string]proto.Worker{}
	for name := range d.workers {
		if w := d.live(name); w.Name != "" {
			live[name] = w
		}
	}
	return live
}

// held copies the claims.
func (d *Directory) held() map[string]claimed {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.claims)
}
