package claim

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
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
	// vanished: a hand has removed or damaged the claim. Whose it was is not known, and its holder may
	// hear of that late, and works on until then.
	vanished bool
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
	ownGone func(revision uint64) // called when the own record is gone; optional
	removed func()                // called when a hand has removed a claim; optional
	records *bus.Follower         // of the workers

	mu        sync.Mutex
	workers   map[string]heard
	signs     map[string]time.Time // when a worker's last sign of life was heard, for a TTL
	claims    map[string]claimed   // by key without the group
	claimsSeq uint64               // of the bucket of claims: what is known of claims is as of this message
}

// Watch reads who holds what, and follows it until Close: the end of ctx ends the reading only.
func Watch(ctx context.Context, b *bus.Bus, group string, log *slog.Logger) (*Directory, error) {
	return watch(ctx, b, Options{Group: group, Log: log}, nil, nil)
}

func watch(ctx context.Context, b *bus.Bus, o Options, ownGone func(uint64), removed func()) (*Directory, error) {
	ttl := b.Sizing().WorkerTTL
	d := &Directory{
		group: o.Group, log: o.Log, changed: make(chan struct{}, 1), Ended: make(chan error, 2),
		silence: 2 * ttl, ttl: ttl, began: time.Now(), self: o.Worker, ownGone: ownGone, removed: removed,
		workers: map[string]heard{}, signs: map[string]time.Time{}, claims: map[string]claimed{},
	}
	var lasting context.Context
	lasting, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	for bucket, hear := range map[string]func(string, bus.Message) error{
		proto.BucketWorkers: d.hearWorker, proto.BucketClaims: d.hearClaim,
	} {
		f, err := d.follow(ctx, lasting, b, bucket, hear)
		if err != nil {
			d.stop()
			return nil, err
		}
		if bucket == proto.BucketWorkers {
			d.records = f
		}
	}
	return d, nil
}

// follow reads a bucket as it stands, unless ctx ends before, and follows it until lasting ends.
func (d *Directory) follow(
	ctx, lasting context.Context, b *bus.Bus, bucket string, hear func(string, bus.Message) error,
) (*bus.Follower, error) {
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
		return nil, fmt.Errorf("read bucket %s: %w", bucket, err)
	}
	go func() { d.Ended <- f.Run(lasting) }()
	return f, nil
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
// when this process began to listen. d.mu is held.
func (d *Directory) quietIn(name string) time.Duration {
	last, heard := d.signs[name]
	if !heard {
		last = d.began
	}
	return time.Until(last.Add(d.ttl))
}

// mayBeWorkedOn reports whether some worker may still work by a claim that names it, or that it had
// made before the claim vanished. No worker goes by it any more when
//   - the holder has said, in its record, that it knows that the claim has vanished and that it does
//     not work by it; or
//   - the holder has no record, and nothing was heard of it for a TTL: its lease has ended, however
//     the record went, because a lease ends within a TTL after the last heartbeat was begun.
//
// Where the claim has vanished, that must be true of every other worker. again is after how long
// silence may have ended the work; 0: a message will tell. This counts only for what d has heard:
// see [Directory.catchUp].
func (d *Directory) mayBeWorkedOn(c claimed) (mayBe bool, again time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	holders := map[string]bool{c.Worker: true} // the empty name is of those that died before this process listened
	if c.Worker == "" && c.vanished {
		for name := range d.workers {
			holders[name] = true
		}
		for name := range d.signs {
			holders[name] = true
		}
	}
	if delete(holders, d.self); c.Worker == "" && !c.vanished {
		return false, 0
	}
	for name := range holders {
		w, wait := d.live(name), d.quietIn(name)
		switch {
		case w.Name != "" && !(c.vanished && w.Heard >= c.revision):
			return true, 0
		case w.Name == "" && wait > 0:
			mayBe, again = true, max(again, wait)
		}
	}
	return mayBe, again
}

// catchUp waits until d knows every heartbeat that the bucket has now. Without it, a worker could
// be taken for silent only because its heartbeats are read late.
func (d *Directory) catchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, casTimeout)
	defer cancel()
	if err := d.records.CatchUp(ctx); err != nil {
		return fmt.Errorf("read which workers live: %w", err)
	}
	return nil
}

// hearClaim takes a claim that cannot be read for one that has vanished.
func (d *Directory) hearClaim(key string, m bus.Message) (err error) {
	d.claimsSeq = max(d.claimsSeq, m.Seq)
	before := d.claims[key]
	if m.Seq < before.revision {
		return nil // this worker has made its claim since, see made
	}
	delete(d.claims, key)
	c := claimed{revision: m.Seq}
	switch {
	case m.Deletes() && m.Header.Get(proto.HeaderReleased) != "":
		return nil
	case m.Deletes():
	default:
		if err = json.Unmarshal(m.Data, &c.Claim); err == nil {
			d.claims[key] = c
			return nil
		}
	}
	// Whose it was is not known, not even where its last claim was read: the bucket keeps one message
	// of a key, so another worker's claim may have come in between.
	d.claims[key] = claimed{revision: m.Seq, vanished: true}
	if d.removed != nil {
		d.removed()
	}
	return err
}

// made notes a claim of this worker as soon as it is made. If it vanishes before it is read, its
// holder is known.
func (d *Directory) made(key string, claim proto.Claim, revision uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claims[key].revision < revision {
		d.claims[key] = claimed{claim, revision, false}
	}
}

// heardClaims is the sequence of the bucket of claims up to which this worker knows what has
// vanished, and works by nothing of that. working has the keys that it works on or is about to
// claim, with a revision that its claim is not older than.
func (d *Directory) heardClaims(working map[string]uint64) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	seq := d.claimsSeq
	for key, revision := range working {
		if c := d.claims[key]; c.vanished && c.revision > revision {
			seq = min(seq, c.revision-1)
		}
	}
	return seq
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
	return w, c.by(w) && !c.vanished
}

// Lives reports whether a worker is live.
func (d *Directory) Lives(worker proto.Worker) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.live(worker.Name).Name != ""
}

// Preferred is the live worker to which a key falls that no worker claims; "": no worker lives. All
// that know the same workers say the same.
func (d *Directory) Preferred(key string) string {
	workers := slices.Collect(maps.Keys(d.Workers()))
	if len(workers) == 0 {
		return ""
	}
	return preferred(key, workers)
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
