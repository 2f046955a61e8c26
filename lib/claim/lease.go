package claim

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// lease is the right of a worker to work by its claims. It is a value: work runs under its context,
// and the end of the lease ends that context for good. A later heartbeat begins another lease,
// so work that was begun under an ended one can never go on by it.
//
// Three things end a lease: its time, which heartbeats make longer; the sight that the worker's
// record was gone, for another worker may have begun then; and the end of the worker.
type lease struct {
	ctx context.Context
	end context.CancelFunc
}

// leases gives a worker one lease after the other.
type leases struct {
	ttl   time.Duration // how long a silent worker is believed to live
	group string
	log   *slog.Logger
	alarm alarm

	mu      sync.Mutex
	current lease
	until   time.Duration // when the current lease ends, by the alarm's clock
	// written is the revision of the worker's record as it was last written, and gone the newest
	// revision at which it was seen to be gone.
	written, gone uint64
}

// alarm is a clock that can ring at one time. Its clock goes on while the machine is suspended:
// others see the record expire meanwhile.
type alarm interface {
	now() time.Duration
	set(at time.Duration)
	close()
}

// newLeases begins without a lease.
func newLeases(ttl time.Duration, o Options, newAlarm func(ring func()) (alarm, error)) (*leases, error) {
	l := &leases{ttl: ttl, group: o.Group, log: o.Log}
	l.current.ctx, l.current.end = context.WithCancel(context.Background())
	l.current.end()
	var err error
	l.alarm, err = newAlarm(l.lapse)
	return l, err
}

// renew notes a heartbeat that got through: it was begun at that time of the alarm's clock, and
// wrote the record's revision. The lease counts from before the write, because the bucket's clock
// for the record cannot have begun earlier. A tenth of the TTL is kept for stopping what runs.
func (l *leases) renew(began time.Duration, revision uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written = revision
	if l.endIfOver(); revision < l.gone {
		return // the answer to the write came later than the news that the record is gone again
	}
	l.until = began + l.ttl - l.ttl/10
	if l.current.ctx.Err() != nil {
		l.current.ctx, l.current.end = context.WithCancel(context.Background())
	}
	l.alarm.set(l.until)
}

// recordGone ends the lease because the record was seen to be gone at that revision. If this worker
// has written the record again since, that is no news.
func (l *leases) recordGone(revision uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if revision <= l.written {
		return
	}
	l.gone = max(l.gone, revision)
	if l.current.ctx.Err() == nil {
		l.log.Warn("the worker's record is gone from the bus; work on claims stops and begins again", "group", l.group)
		l.current.end()
	}
}

// lapse ends the lease if its time is over.
func (l *leases) lapse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endIfOver()
}

func (l *leases) endIfOver() {
	if l.current.ctx.Err() == nil && l.alarm.now() >= l.until {
		l.log.Warn("the heartbeat did not get through in time; work on claims stops", "group", l.group)
		l.current.end()
	}
}

// now is the current lease.
func (l *leases) now() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return leaseContext{l.current.ctx, l}
}

// leaseContext is the context of a lease. It asks the clock too: the goroutine that ends the
// context may come late on a machine with too little time.
type leaseContext struct {
	context.Context
	leases *leases
}

func (c leaseContext) Err() error {
	c.leases.lapse()
	return c.Context.Err()
}

// close ends the lease and gives no other.
func (l *leases) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current.end()
	l.alarm.close()
}

// timer is an alarm by Go's timers, which stand still while the machine is suspended.
type timer struct {
	began time.Time
	*time.Timer
}

func newTimer(ring func()) (alarm, error) {
	t := timer{time.Now(), time.AfterFunc(time.Hour, ring)}
	t.Stop()
	return t, nil
}

func (t timer) now() time.Duration   { return time.Since(t.began) }
func (t timer) set(at time.Duration) { t.Reset(at - t.now()) }
func (t timer) close()               { t.Stop() }
