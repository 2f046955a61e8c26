package limit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// What is stored, and by which kind of party.
const (
	Events = "events"
	Git    = "git"

	Author        = "author"  // a public key
	ClientAddress = "address" // see [Address]
	Relay         = "relay"   // a normalised URL
)

// Party is one whose stored bytes are counted.
type Party struct{ What, Kind, Name string }

// Charge is a party that pays for what is stored, and how much it may store in a day. 0: any
// amount.
type Charge struct {
	Party
	Most int64
}

// Usage counts the bytes that each party has stored on the present day (UTC). The counts are kept
// in the bucket grasp-usage: they survive restarts, and the workers that store git data share them.
// It is safe for concurrent use.
type Usage struct {
	kv  jetstream.KeyValue
	js  jetstream.JetStream
	log *slog.Logger
	now func() time.Time

	mu   sync.Mutex
	day  int64 // since 1970, in UTC
	used map[Party]*amount
}

// amount is what a party has stored: as the bucket says, and since then.
type amount struct{ saved, more int64 }

const (
	// saveEvery is how often counts of events are saved. A crash forgets the last ones.
	saveEvery = 2 * time.Second
	// leastSaved is what a party must have stored to be remembered: keys cost nothing, so there may
	// be any number of small ones. Beyond mostCounted parties the small ones are forgotten.
	leastSaved  = 64 << 10
	mostCounted = 100_000
)

// OpenUsage opens the bucket. now is the clock.
func OpenUsage(ctx context.Context, b *bus.Bus, log *slog.Logger, now func() time.Time) (*Usage, error) {
	kv, err := b.Bucket(ctx, proto.BucketUsage)
	if err != nil {
		return nil, err
	}
	return &Usage{kv: kv, js: b.JS, log: log, now: now, used: map[Party]*amount{}}, nil
}

func (p Party) key() string { return proto.UsageKey(p.What, p.Kind, p.Name) }

// Load reads what was saved.
func (u *Usage) Load(ctx context.Context) error {
	err := bus.Read(ctx, u.js, bus.Reading{Stream: proto.KVStream(proto.BucketUsage)}, func(m bus.Message) {
		var v proto.Usage
		what, kind, name, err := proto.ParseUsageSubject(m.Subject)
		if err == nil && !m.Deletes() && json.Unmarshal(m.Data, &v) == nil {
			u.saved(Party{what, kind, name}, v)
		}
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", proto.BucketUsage, err)
	}
	return nil
}

// saved takes in what the bucket has of a party.
func (u *Usage) saved(p Party, v proto.Usage) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.turnDay()
	if v.Day == u.day {
		u.amountOf(p).saved = v.Bytes
	}
}

// turnDay forgets the day before; u.mu is held.
func (u *Usage) turnDay() {
	if day := u.now().Unix() / (24 * 60 * 60); day != u.day {
		u.day = day
		clear(u.used)
	}
}

func (u *Usage) amountOf(p Party) *amount {
	a := u.used[p]
	if a == nil {
		if len(u.used) >= mostCounted {
			for other, a := range u.used {
				if a.saved+a.more < leastSaved {
					delete(u.used, other)
				}
			}
		}
		a = &amount{}
		u.used[p] = a
	}
	return a
}

// Left is how many bytes all of those who pay may still store, which of them has least left, and
// when its budget is free again. factor multiplies all budgets: what owners and maintainers of
// served repositories store for these has ten times the budget. [Usage.Refresh] first, where others
// store too.
func (u *Usage) Left(factor int64, charges ...Charge) (left int64, of Party, free time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.turnDay()
	left = 1 << 62
	for _, c := range charges {
		if c.Most == 0 {
			continue
		}
		own := c.Most * factor
		if a := u.used[c.Party]; a != nil {
			own = max(0, own-a.saved-a.more)
		}
		if own < left {
			left, of = own, c.Party
		}
	}
	return left, of, time.Unix((u.day+1)*24*60*60, 0).UTC()
}

// Take counts n bytes if all of those who pay may still store them.
func (u *Usage) Take(n, factor int64, charges ...Charge) (taken bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.turnDay()
	for _, c := range charges {
		if a := u.used[c.Party]; c.Most > 0 && a != nil && a.saved+a.more+n > c.Most*factor || c.Most > 0 &&
			n > c.Most*factor {
			return false
		}
	}
	for _, c := range charges {
		u.amountOf(c.Party).more += n
	}
	return true
}

// Add counts n bytes; n is less than 0 for what was counted and not stored. They are saved by
// [Usage.Run], or by [Usage.Save].
func (u *Usage) Add(n int64, charges ...Charge) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.turnDay()
	for _, c := range charges {
		u.amountOf(c.Party).more += n
	}
}

// Refresh reads what others have stored of the same parties.
func (u *Usage) Refresh(ctx context.Context, charges ...Charge) error {
	for _, c := range charges {
		_, v, err := u.read(ctx, c.Party)
		if err != nil {
			return err
		}
		u.saved(c.Party, v)
	}
	return nil
}

// Run saves the counts from time to time, and when ctx ends.
func (u *Usage) Run(ctx context.Context) {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveEvery)
			defer cancel()
			_ = u.Save(last)
			return
		}
		if err := u.Save(ctx); err != nil && ctx.Err() == nil {
			u.log.Warn("the stored bytes of the day cannot be saved; trying again", "error", err)
		}
	}
}

// Save saves the counts of all parties that are not small.
func (u *Usage) Save(ctx context.Context) error {
	var parties []Party
	u.mu.Lock()
	for p, a := range u.used {
		if a.more != 0 && a.saved+max(a.more, 0) >= leastSaved {
			parties = append(parties, p)
		}
	}
	u.mu.Unlock()
	for _, p := range parties {
		if err := u.save(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// save adds to the bucket what was counted since the last time. Another worker may do so too, so
// the value is replaced only as it was read.
func (u *Usage) save(ctx context.Context, p Party) error {
	for {
		revision, v, err := u.read(ctx, p)
		if err != nil {
			return err
		}
		u.mu.Lock()
		u.turnDay()
		a := u.amountOf(p)
		more := a.more
		if v.Day != u.day {
			v = proto.Usage{Day: u.day}
		}
		v.Bytes += more
		u.mu.Unlock()
		data, err := json.Marshal(v)
		if err != nil {
			return err
		}
		_, err = u.kv.Update(ctx, p.key(), data, revision)
		if bus.IsConflict(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("save stored bytes: %w", err)
		}
		u.mu.Lock()
		if v.Day == u.day {
			a.saved, a.more = v.Bytes, a.more-more
		}
		u.mu.Unlock()
		return nil
	}
}

func (u *Usage) read(ctx context.Context, p Party) (revision uint64, v proto.Usage, err error) {
	entry, err := u.kv.Get(ctx, p.key())
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, v, nil
	}
	if err != nil {
		return 0, v, fmt.Errorf("read stored bytes: %w", err)
	}
	if json.Unmarshal(entry.Value(), &v) != nil {
		v = proto.Usage{}
	}
	return entry.Revision(), v, nil
}
