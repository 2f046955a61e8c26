package claim

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// claimed is a claim with the revision that fences it.
type claimed struct {
	proto.Claim
	revision uint64
}

// roster is what the buckets of one era say of one group: who is there and who holds what.
type roster struct {
	group   string
	log     *slog.Logger
	changed chan struct{} // of capacity 1: something may be different

	mu      sync.Mutex
	workers map[string]proto.Worker
	claims  map[string]claimed // by key without the group
}

func newRoster(group string, log *slog.Logger, changed chan struct{}) *roster {
	return &roster{group: group, log: log, changed: changed, workers: map[string]proto.Worker{}, claims: map[string]claimed{}}
}

// follow follows both buckets until ctx ends. It returns when they were read as they stood, or with
// an error when reading ends before.
func (r *roster) follow(ctx, reading context.Context, b *bus.Bus, running *sync.WaitGroup) error {
	for bucket, hear := range map[string]func(string, bus.Message){
		proto.BucketWorkers: r.hearWorker,
		proto.BucketClaims:  r.hearClaim,
	} {
		prefix := proto.KVSubject(bucket, "")
		read := make(chan struct{})
		what := bus.Reading{
			Stream: proto.KVStream(bucket), Filters: []string{prefix + proto.ClaimKey(r.group, ">")}, Idle: sync.OnceFunc(func() { close(read) }),
		}
		running.Go(func() {
			// It ends with ctx and never with an error.
			_ = bus.Follow(ctx, b.JS, what, r.log, func(m bus.Message) { r.hear(m, m.Subject[len(prefix):], hear) })
		})
		select {
		case <-read:
		case <-reading.Done():
			return reading.Err()
		}
	}
	return nil
}

func (r *roster) hear(m bus.Message, key string, hear func(string, bus.Message)) {
	_, name, err := proto.ParseClaimKey(key)
	if err != nil {
		r.log.Error("a key cannot be read", "key", key, "error", err)
		return
	}
	hear(name, m)
	tell(r.changed)
}

// tell sends on a channel of capacity 1, unless that was done already.
func tell(changed chan struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

func (r *roster) hearWorker(name string, m bus.Message) {
	var w proto.Worker
	put := !m.Deletes()
	if put {
		if err := json.Unmarshal(m.Data, &w); err != nil {
			r.log.Error("a worker's record cannot be read", "worker", name, "error", err)
			put = false
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if put {
		r.workers[name] = w
	} else {
		delete(r.workers, name)
	}
}

func (r *roster) hearClaim(name string, m bus.Message) {
	c := claimed{revision: m.Seq}
	put := !m.Deletes()
	if put {
		if err := json.Unmarshal(m.Data, &c.Claim); err != nil {
			r.log.Error("a claim cannot be read", "key", name, "error", err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if put {
		r.claims[name] = c
	} else {
		delete(r.claims, name)
	}
}

// snapshot copies what is known.
func (r *roster) snapshot() (map[string]proto.Worker, map[string]claimed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.workers), maps.Clone(r.claims)
}

// worker returns a live worker by its name.
func (r *roster) worker(name string) (proto.Worker, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, live := r.workers[name]
	return w, live
}

// holder is the live worker that holds a key.
func (r *roster) holder(key string) (proto.Worker, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.claims[key]
	w, alive := r.workers[c.Worker]
	return w, ok && alive && w.Incarnation == c.Incarnation
}

// standing is how a group stands in one era.
type standing struct {
	era     bus.Era
	seen    time.Time // when the era was first seen here, which is later than it began
	settled bool
	roster  *roster
	former  *roster // of the era before, nil: this is the first one seen
}

// rests reports whether no key may be handed out at that time: whoever held it in the era before
// may still work by that claim. All such work has ended when one TTL is over, because a worker's
// lease is at most nine tenths of a TTL from a moment at which the era before lasted.
func (s standing) rests(now time.Time, ttl time.Duration) bool {
	return !s.settled && now.Before(s.seen.Add(ttl))
}

// register keeps the standing of a group, from era to era.
type register struct {
	bus     *bus.Bus
	group   string
	ttl     time.Duration
	log     *slog.Logger
	changed chan struct{} // of capacity 1: something may be different
	stale   chan struct{} // of capacity 1: somebody has found that the era is over

	mu  sync.Mutex
	now standing
}

// lookEvery is the time between two looks which era it is.
func lookEvery(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 50*time.Millisecond), time.Second)
}

// openRegister reads the group as it stands, as soon as the bus lets it and unless ctx ends before,
// and follows it until lasting ends.
func openRegister(ctx, lasting context.Context, b *bus.Bus, group string, ttl time.Duration, log *slog.Logger) (*register, error) {
	g := &register{bus: b, group: group, ttl: ttl, log: log, changed: make(chan struct{}, 1), stale: make(chan struct{}, 1)}
	opened := make(chan struct{})
	go g.run(lasting, opened)
	select {
	case <-opened:
		return g, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// run reads era after era until ctx ends. opened is closed when the first was read.
func (g *register) run(ctx context.Context, opened chan struct{}) {
	every := lookEvery(g.ttl)
	tick := time.NewTicker(every)
	defer tick.Stop()
	stop, following := func() {}, &sync.WaitGroup{}
	defer func() { stop(); following.Wait() }()
	for {
		next, err := g.look(ctx)
		switch {
		case err != nil:
			g.log.Debug("the claims cannot be looked at", "group", g.group, "error", err)
		case next.roster == nil: // the era lasts
		default:
			own, cancel := context.WithCancel(ctx)
			reading, done := context.WithTimeout(own, readTimeout)
			go g.endWith(reading, done, next.era, every)
			err := next.roster.follow(own, reading, g.bus, following)
			done()
			if err != nil {
				cancel()
				break
			}
			stop()
			stop = cancel
			g.begin(next, opened)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-g.stale:
		}
	}
}

// readTimeout bounds reading the buckets as they stand.
const readTimeout = 30 * time.Second

// endWith ends the reading of an era's buckets when the era is over: what was to be read is gone.
func (g *register) endWith(reading context.Context, end func(), era bus.Era, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-reading.Done():
			return
		case <-tick.C:
		}
		if lasts, err := g.lasts(reading, era); err == nil && !lasts {
			end()
			return
		}
	}
}

// look looks which era it is. The standing has a roster if it is a new one.
func (g *register) look(ctx context.Context) (standing, error) {
	ctx, cancel := context.WithTimeout(ctx, casTimeout)
	defer cancel()
	era, settled, err := g.bus.Era(ctx)
	if err != nil {
		return standing{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.now.roster != nil && era == g.now.era {
		if settled && !g.now.settled {
			g.now.settled = true
			tell(g.changed)
		}
		return standing{}, nil
	}
	return standing{era: era, settled: settled, seen: time.Now(), former: g.now.roster, roster: newRoster(g.group, g.log, g.changed)}, nil
}

// begin begins an era whose buckets were read.
func (g *register) begin(next standing, opened chan struct{}) {
	g.mu.Lock()
	first := g.now.roster == nil
	g.now = next
	g.mu.Unlock()
	if first {
		close(opened)
	} else {
		g.log.Warn("the claims were made anew; what is worked on is claimed again", "group", g.group)
	}
	tell(g.changed)
}

// current is how the group stands now.
func (g *register) current() standing {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now
}

// lasts reports whether an era lasts. It asks the bus: what was written to the buckets before the
// call was written in this era.
func (g *register) lasts(ctx context.Context, era bus.Era) (bool, error) {
	now, _, err := g.bus.Era(ctx)
	if err != nil {
		return false, err
	}
	if now != era {
		tell(g.stale)
	}
	return now == era, nil
}

// Directory knows who holds which key of a group, for those who must reach the holder.
type Directory struct {
	register *register
	stop     context.CancelFunc
}

// Watch reads who holds what, and follows it until Close: the end of ctx ends the reading only.
func Watch(ctx context.Context, b *bus.Bus, group string, log *slog.Logger) (*Directory, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	g, err := openRegister(ctx, lasting, b, group, b.Sizing().WorkerTTL, log)
	if err != nil {
		stop()
		return nil, err
	}
	return &Directory{g, stop}, nil
}

// Close ends the following. From then on the directory tells what it knew last.
func (d *Directory) Close() { d.stop() }

// Holder is the live worker that holds a key; false: nobody does at this moment. While an era
// rests, only who held a key in the one before can hold it: so it is that worker, whether it has
// claimed the key again yet or not.
func (d *Directory) Holder(key string) (proto.Worker, bool) {
	now := d.register.current()
	w, held := now.roster.holder(key)
	if !held && now.former != nil && now.rests(time.Now(), d.register.ttl) {
		w, held = now.former.holder(key)
	}
	return w, held
}

// Lives reports whether a worker is live and was not started anew since.
func (d *Directory) Lives(worker proto.Worker) bool {
	now := d.register.current()
	w, live := now.roster.worker(worker.Name)
	if !live && now.former != nil && now.rests(time.Now(), d.register.ttl) {
		w, live = now.former.worker(worker.Name)
	}
	return live && w.Incarnation == worker.Incarnation
}

// Workers are the live workers of the group, by name; while an era rests, those of the one before
// too.
func (d *Directory) Workers() map[string]proto.Worker {
	now := d.register.current()
	workers, _ := now.roster.snapshot()
	if now.former != nil && now.rests(time.Now(), d.register.ttl) {
		before, _ := now.former.snapshot()
		maps.Copy(before, workers)
		return before
	}
	return workers
}
