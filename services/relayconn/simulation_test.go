package relayconn

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/candidates"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/lib/reconcile"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// A simulation is one relay and the worker that has its claim, in a bubble of its own time: the
// relayWorker, the session, the intake and the targets are the real ones. The relay, ingest, the
// discovery and the bucket grasp-relays are values in memory. So thousands of exchanges can be
// played, each of which is disturbed at another message.

// midnight is when every bubble begins.
const midnight nostr.Timestamp = 946_684_800

// transit is how long a message of the relay takes.
const transit = 150 * time.Millisecond

const relayName, relayURL = "r.example.com", "wss://r.example.com"

// fault is what happens in the middle of an exchange.
type fault string

const (
	cut      fault = "cut"      // the connection ends
	handover fault = "handover" // the claim passes to another worker, which may write before
	kill     fault = "kill"     // the process dies, and another begins
)

// odd is how a relay differs from one that does all as it is asked.
type odd struct {
	page       int                                          // most events of a filter; 0: as many as are asked for
	noNIP77    bool                                         // it does not reconcile
	newest     int                                          // it reconciles only so many events of a filter, the newest; 0: all, -1: none
	exclusive  bool                                         // until excludes its second
	early      time.Duration                                // EOSE comes first, the events so much later
	refuses    func(filters []nostr.Filter) (reason string) // a CLOSED in place of an answer; "": it answers
	hides      func(f nostr.Filter, events int) (shown int) // how many events of a filter it shows in a REQ of several
	reconciled func(f nostr.Filter, n int) (reason string)  // NEG-ERR in place of an answer; "": it answers
	frame      int                                          // bytes of its frames; 0: the default
	hidden     map[string]bool                              // ids that it names and does not deliver
	room       int                                          // subscriptions that it takes; 0: any number
}

// simulation is that.
type simulation struct {
	t       *testing.T
	odd     odd
	rules   Rules
	faults  map[int]fault // by the number of the message, from 1
	started time.Time

	mu       sync.Mutex
	stored   []*nostr.Event // of the relay, the newest first
	messages int            // that the two have exchanged
	conn     *pipe          // that stands; nil: none does
	worker   *generation
	asked    []nostr.Filter // of REQs

	seq      uint64 // of the log
	accepted map[string]*nostr.Event
	log      map[string]uint64 // sequence of each
	parked   map[string]*nostr.Event
	rejected map[string]bool
	counted  map[string]int       // offers of each event
	putOff   map[string]time.Time // ids of events that are not taken before

	targetSeq uint64
	targets   []bus.Message // that discovery has published
	bucket    memoryBucket
}

// generation is a worker that has the claim, or had it.
type generation struct {
	ctx     context.Context
	end     context.CancelFunc
	dead    bool // it cannot write any more
	lease   context.Context
	lapse   context.CancelFunc
	targets *Targets
	done    chan struct{}
}

func newSimulation(t *testing.T, odd odd, stored []*nostr.Event) *simulation {
	m := &simulation{
		t: t, odd: odd, faults: map[int]fault{}, started: time.Now(), accepted: map[string]*nostr.Event{}, log: map[string]uint64{},
		parked: map[string]*nostr.Event{}, rejected: map[string]bool{}, counted: map[string]int{},
		rules: Rules{
			Health: health.Rules{Base: 5 * time.Second, Max: time.Hour, Stable: 5 * time.Minute, DeadAfter: 24 * time.Hour, NaughtyFor: 12 * time.Hour},
			Sync:   config.Sync{BatchWindowMillis: 5000}, Check: 2 * time.Second, ReconnectWindow: 15 * time.Minute, DailyMin: 23 * time.Hour, DailyMax: 25 * time.Hour,
			Session: session.Rules{
				PageLimit: 10, AtOnce: 4, MaxFilters: 70, Calm: 6 * time.Second, Silence: time.Minute, ConsolidateWait: time.Minute, Cooldown: 65 * time.Second,
				Apart: beginApart, SilentLook: silentLook,
			},
		},
	}
	m.bucket.simulation, m.seq = m, 1 // which is the mark of the writer
	m.stored = slices.Clone(stored)
	m.sort()
	return m
}

func (m *simulation) sort() {
	slices.SortStableFunc(m.stored, func(a, b *nostr.Event) int { return int(b.CreatedAt - a.CreatedAt) })
}

// begin starts a worker, which takes over what the last one wrote.
func (m *simulation) begin() {
	ctx, end := context.WithCancel(m.t.Context())
	g := &generation{ctx: ctx, end: end, done: make(chan struct{})}
	g.lease, g.lapse = context.WithCancel(m.t.Context())
	source := &simulatedLog{simulation: m}
	g.targets = NewTargets(nil, source, 5*time.Second, 500, make(chan []string, 1), quiet)
	g.targets.hearing = query.Subscription{Seq: source.Seq}
	g.targets.newer = func(_ context.Context, _ []int, seq uint64) (map[string]bool, error) { return source.newer(seq), nil }
	g.targets.relays[relayName] = proto.Target{URL: relayURL, Bootstrap: true}
	in := intake.New(intake.Options{Offerer: &simulatedIngest{m, g}, Stored: source})
	env := &Env{
		Rules: m.rules, Worker: "w", Hash: "hash", Started: m.started, Metrics: NewMetrics(prometheus.NewRegistry()), Log: logOf(m),
		Intake: in, Targets: g.targets,
		Dial:       func(context.Context, string) (Connection, error) { return m.dial(), nil },
		Document:   func(context.Context, string) (wire.Stated, error) { return wire.Stated{}, errors.New("none") },
		Negentropy: &session.Negentropy{Service: &simulatedKnowledge{m}, Room: semaphore.NewWeighted(session.RoomBytes), Seq: source.Seq, Coordinator: &session.HistoryCoordinator{}},
		Sign:       func(*nostr.Event) error { return errors.New("no key") },
	}
	m.mu.Lock()
	m.worker = g
	m.mu.Unlock()
	var running sync.WaitGroup
	running.Go(func() { in.Run(ctx) })
	running.Go(func() { g.targets.ask(ctx) })
	w := &relayWorker{Env: env, name: relayName, lease: g.lease, claimed: time.Now(), warned: map[string]bool{}, log: env.Log}
	w.state = &stateKeeper{js: memoryStream{g: g, bucket: &m.bucket}, kv: memoryKV{g: g, bucket: &m.bucket}, key: relayName, log: quiet}
	if err := w.state.read(ctx); err != nil {
		m.t.Error(err)
	}
	w.resume(time.Now())
	w.target = g.targets.Of(relayName)
	g.targets.mu.Lock()
	g.targets.wanted[relayName] = w.target
	g.targets.mu.Unlock()
	m.mu.Lock()
	before := slices.Clone(m.targets)
	m.mu.Unlock()
	for _, message := range before {
		g.targets.takeWanted(message)
	}
	g.targets.mu.Lock()
	w.target.read = true
	w.target.tell()
	g.targets.mu.Unlock()
	go func() {
		w.run(ctx)
		w.target.Close()
		running.Wait()
		close(g.done)
	}()
}

// stop ends the worker, and waits for it.
func (m *simulation) stop() {
	m.mu.Lock()
	g := m.worker
	m.mu.Unlock()
	g.end()
	<-g.done
}

// counts one message, and lets happen what is to happen then; the lock is held. It reports whether
// the connection still stands.
func (m *simulation) counts(c *pipe) bool {
	if m.conn != c {
		return false
	}
	m.messages++
	what, is := m.faults[m.messages]
	if !is {
		return true
	}
	m.hangUp()
	g := m.worker
	if what != cut {
		if g.dead = what == kill; g.dead {
			g.lapse()
		}
		g.end()
		go func() {
			<-g.done
			time.Sleep(100 * time.Millisecond)
			m.begin()
		}()
	}
	return false
}

// hangUp ends the connection; the lock is held.
func (m *simulation) hangUp() {
	if m.conn != nil {
		close(m.conn.gone)
		m.conn = nil
	}
}

// missing are the events of the relay that have not been accepted.
func (m *simulation) missing() (missing []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ev := range m.stored {
		if m.accepted[ev.ID] == nil {
			missing = append(missing, fmt.Sprintf("%d %s", ev.Kind, ev.Content))
		}
	}
	return missing
}

// pipe is one connection to the relay.
type pipe struct {
	*simulation
	out      chan wire.Message
	gone     chan struct{}
	subs     map[string][]nostr.Filter
	sessions map[string]nostr.Filter
}

func (m *simulation) dial() *pipe {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hangUp()
	m.conn = &pipe{simulation: m, out: make(chan wire.Message, 1<<12), gone: make(chan struct{}), subs: map[string][]nostr.Filter{}, sessions: map[string]nostr.Filter{}}
	return m.conn
}

func (c *pipe) say(messages ...wire.Message) {
	for _, message := range messages {
		c.out <- message
	}
}

// hears counts what the client says, and answers it while the connection stands.
func (c *pipe) hears(answer func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts(c) {
		answer()
	}
}

// Read implements Connection, and so do the following.
func (c *pipe) Read(ctx context.Context, fn func(wire.Message) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.gone:
			return io.ErrUnexpectedEOF
		case message := <-c.out:
			time.Sleep(transit) // so that the worker writes down how it stands in between
			c.mu.Lock()
			stands := c.counts(c)
			c.mu.Unlock()
			if !stands {
				return io.ErrUnexpectedEOF
			}
			if err := fn(message); err != nil {
				return err
			}
		}
	}
}

func (c *pipe) KeepAlive(ctx context.Context) error { <-ctx.Done(); return nil }
func (c *pipe) Auth(nostr.Event)                    {}
func (c *pipe) Publish(*nostr.Event)                {}

func (c *pipe) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == c {
		c.hangUp()
	}
}

func (c *pipe) Req(sub string, filters []nostr.Filter) {
	c.hears(func() {
		c.asked = append(c.asked, filters...)
		if _, again := c.subs[sub]; c.odd.room > 0 && !again && len(c.subs) >= c.odd.room {
			c.say(wire.Message{Kind: wire.Closed, Sub: sub, Reason: "error: too many concurrent REQs"})
			return
		}
		if c.odd.refuses != nil {
			if reason := c.odd.refuses(filters); reason != "" {
				c.say(wire.Message{Kind: wire.Closed, Sub: sub, Reason: reason})
				return
			}
		}
		var answer []wire.Message
		sent := map[string]bool{}
		for _, f := range filters {
			most := f.Limit
			if f.LimitZero {
				most = 0
			} else if c.odd.page > 0 {
				most = min(most, c.odd.page)
			}
			if c.odd.hides != nil {
				most = min(most, c.odd.hides(f, len(filters)))
			}
			for _, ev := range c.stored {
				if most <= 0 || !f.Matches(ev) || c.odd.exclusive && f.Until != nil && ev.CreatedAt == *f.Until {
					continue
				}
				if most--; sent[ev.ID] || c.odd.hidden[ev.ID] && f.IDs != nil {
					continue
				}
				sent[ev.ID] = true
				answer = append(answer, wire.Message{Kind: wire.Event, Sub: sub, Event: ev})
			}
		}
		c.subs[sub] = filters
		end := wire.Message{Kind: wire.EOSE, Sub: sub}
		if c.odd.early > 0 && !filters[0].LimitZero {
			c.say(end)
			time.AfterFunc(c.odd.early, func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.say(answer...) // a CLOSE does not reach what is on its way
			})
			return
		}
		c.say(append(answer, end)...)
	})
}

func (c *pipe) Unsubscribe(sub string) { c.hears(func() { delete(c.subs, sub) }) }

func (c *pipe) NegOpen(sub string, f nostr.Filter, message []byte) {
	c.hears(func() {
		if c.odd.noNIP77 {
			c.say(wire.Message{Kind: wire.Notice, Reason: "ERROR: bad msg: unknown cmd"})
			return
		}
		c.sessions[sub] = f
		c.negotiate(sub, message)
	})
}

func (c *pipe) NegMsg(sub string, message []byte) { c.hears(func() { c.negotiate(sub, message) }) }

func (c *pipe) NegClose(sub string) { c.hears(func() { delete(c.sessions, sub) }) }

func (c *pipe) negotiate(sub string, message []byte) {
	f, items := c.sessions[sub], reconcile.Packed(nil)
	for _, ev := range c.stored {
		if f.Matches(ev) && (c.odd.newest == 0 || len(items) < c.odd.newest) {
			items = append(items, itemOf(ev))
		}
	}
	if c.odd.reconciled != nil {
		if reason := c.odd.reconciled(f, len(items)); reason != "" {
			c.say(wire.Message{Kind: wire.NegErr, Sub: sub, Reason: reason})
			return
		}
	}
	limits := reconcile.DefaultLimits
	if c.odd.frame > 0 {
		limits.Frame = c.odd.frame
	}
	answer, err := reconcile.Respond(context.Background(), reconcile.Pack(items), message, limits)
	if err != nil {
		c.t.Error(err)
	}
	c.say(wire.Message{Kind: wire.NegMsg, Sub: sub, Frame: answer})
}

func itemOf(ev *nostr.Event) reconcile.Item {
	id, _ := hex.DecodeString(ev.ID)
	return reconcile.Item{CreatedAt: ev.CreatedAt, ID: [32]byte(id)}
}

// simulatedIngest decides what one worker offers.
type simulatedIngest struct {
	*simulation
	g *generation
}

// Offer implements intake.Offerer. What a process that has died has offered is lost.
func (i *simulatedIngest) Offer(_ context.Context, c candidates.Candidate) error {
	time.AfterFunc(5*time.Millisecond, func() {
		i.mu.Lock()
		if i.g.dead {
			i.mu.Unlock()
			return
		}
		i.counted[c.Event.ID]++
		v := proto.Verdict{ID: c.Event.ID, Kind: c.Event.Kind, Outcome: proto.Duplicate}
		if i.accepted[c.Event.ID] == nil {
			v.Outcome = proto.Rejected
			if until := i.putOff[c.Event.ID]; time.Now().Before(until) {
				i.mu.Unlock()
				c.Done(v, &candidates.Later{Until: until})
				return
			}
			if v.Retry = !i.take(c.Event); !v.Retry {
				v.Outcome = proto.Accepted
			}
		}
		i.mu.Unlock()
		c.Done(v, nil)
	})
	return nil
}

// take accepts an event, and what has waited for it; or it parks the event for two minutes. The
// lock is held.
func (m *simulation) take(ev *nostr.Event) (accepted bool) {
	if !m.belongs(ev) {
		m.parked[ev.ID] = ev
		time.AfterFunc(2*time.Minute, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if delete(m.parked, ev.ID); m.accepted[ev.ID] == nil {
				m.rejected[ev.ID] = true
			}
		})
		return false
	}
	m.seq++
	m.accepted[ev.ID], m.log[ev.ID] = ev, m.seq
	record := eventdb.Record{Seq: m.seq, Event: ev}
	if g := m.worker; slices.Contains(g.targets.followed(), ev.Kind) {
		go g.targets.hear([]eventdb.Record{record})
	}
	if ev.Kind == nostr.KindAnnouncement {
		ref := fmt.Sprintf("30617:%s:%s", ev.PubKey, ev.Tags.GetD())
		time.AfterFunc(5*time.Second, func() { m.target(ref) })
	}
	for id, waits := range m.parked {
		if m.accepted[id] == nil && m.belongs(waits) {
			delete(m.parked, id)
			m.take(waits)
		}
	}
	return true
}

// belongs reports whether what an event names is accepted; the lock is held.
func (m *simulation) belongs(ev *nostr.Event) bool {
	switch ev.Kind {
	case nostr.KindAnnouncement, nostr.KindUserGraspList:
		return true
	case nostr.KindState:
		return slices.ContainsFunc(slices.Collect(maps.Values(m.accepted)), func(o *nostr.Event) bool {
			return o.Kind == nostr.KindAnnouncement && o.Tags.GetD() == ev.Tags.GetD()
		})
	}
	for _, tag := range ev.Tags {
		for _, o := range m.accepted {
			if tag[1] == o.ID || o.Kind == nostr.KindAnnouncement && tag[1] == fmt.Sprintf("30617:%s:%s", o.PubKey, o.Tags.GetD()) {
				return true
			}
		}
	}
	return false
}

// target has discovery want a repository of the relay.
func (m *simulation) target(ref string) {
	m.mu.Lock()
	to := proto.Target{URL: relayURL, Bootstrap: true, Repos: map[string]proto.Wanted{ref: {Level: proto.LevelFull}}}
	messages, err := to.Messages(relayName)
	if err != nil {
		m.t.Error(err)
	}
	g := m.worker
	var fresh []bus.Message
	for subject, data := range messages {
		if _, _, err := proto.ParseWantedSubject(subject); err == nil {
			m.targetSeq++
			fresh = append(fresh, bus.Message{Subject: subject, Data: data, Seq: m.targetSeq})
		}
	}
	m.targets = append(m.targets, fresh...)
	m.mu.Unlock()
	for _, message := range fresh {
		g.targets.takeWanted(message)
	}
}

// simulatedKnowledge is ingest's side of NIP-77.
type simulatedKnowledge struct{ *simulation }

func (k *simulatedKnowledge) set(f nostr.Filter) (set reconcile.Packed) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ev := range k.stored {
		if f.Matches(ev) && (k.accepted[ev.ID] != nil || k.rejected[ev.ID]) {
			set = append(set, itemOf(ev))
		}
	}
	return reconcile.Pack(set)
}

// Begin implements session.Service, and so does Continue.
func (k *simulatedKnowledge) Begin(ctx context.Context, q proto.ReconcileQuery) (step query.Step, err error) {
	set := k.set(q.Filter)
	if step.Known = uint64(len(set)); step.Known > 0 {
		step.Oldest = set[0].CreatedAt
	}
	step.Message, err = reconcile.Start(ctx, set, reconcile.DefaultLimits)
	return step, err
}

func (k *simulatedKnowledge) Continue(ctx context.Context, q proto.ReconcileQuery, answer []byte) (step query.Step, err error) {
	told, shown := 0, reconcile.Shown{}
	step.Message, shown, err = reconcile.Continue(ctx, k.set(q.Filter), answer, q.Opening, reconcile.DefaultLimits, func(id [32]byte) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		if name := hex.EncodeToString(id[:]); k.accepted[name] == nil && !k.rejected[name] {
			step.Missing = append(step.Missing, id)
		}
		told++
		return nil
	})
	step.Oldest, step.OnlyHere = shown.Oldest, shown.Listed-uint64(told-len(step.Missing))
	return step, err
}

// simulatedLog answers which events are accepted.
type simulatedLog struct {
	query.Source
	*simulation
}

func (l *simulatedLog) Seq() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

func (l *simulatedLog) CatchUp(context.Context) error { return nil }

func (l *simulatedLog) Has(_ context.Context, ids [][32]byte) (has []bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		has = append(has, l.accepted[hex.EncodeToString(id[:])] != nil)
	}
	return has, nil
}

func (l *simulatedLog) IDs(_ context.Context, f nostr.Filter) iter.Seq2[[32]byte, error] {
	return func(yield func([32]byte, error) bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, ev := range l.accepted {
			if f.Matches(ev) && !yield(itemOf(ev).ID, nil) {
				return
			}
		}
	}
}

func (l *simulatedLog) Query(_ context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error] {
	l.mu.Lock()
	defer l.mu.Unlock()
	var matches []*nostr.Event
	for _, ev := range l.accepted {
		if f.Matches(ev) {
			matches = append(matches, ev)
		}
	}
	return func(yield func(*nostr.Event, error) bool) {
		for _, ev := range matches {
			if !yield(ev, nil) {
				return
			}
		}
	}
}

func (l *simulatedLog) newer(seq uint64) map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	newer := map[string]bool{}
	for id, at := range l.log {
		if at > seq {
			newer[id] = true
		}
	}
	return newer
}

// memoryBucket is the relay's entry in grasp-relays.
type memoryBucket struct {
	*simulation
	value    []byte
	revision uint64
}

// write writes the entry on a revision. A process that has died writes nothing.
func (b *memoryBucket) write(g *generation, data []byte, on uint64) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g.dead {
		return 0, errors.New("dead")
	}
	if on != b.revision {
		return 0, jetstream.ErrKeyExists
	}
	b.revision++
	b.value = data
	return b.revision, nil
}

type memoryKV struct {
	jetstream.KeyValue
	g      *generation
	bucket *memoryBucket
}

func (k memoryKV) Get(context.Context, string) (jetstream.KeyValueEntry, error) {
	k.bucket.mu.Lock()
	defer k.bucket.mu.Unlock()
	if k.bucket.revision == 0 {
		return nil, jetstream.ErrKeyNotFound
	}
	return memoryEntry{value: k.bucket.value, revision: k.bucket.revision}, nil
}

func (k memoryKV) Create(_ context.Context, _ string, data []byte, _ ...jetstream.KVCreateOpt) (uint64, error) {
	return k.bucket.write(k.g, data, 0)
}

type memoryEntry struct {
	jetstream.KeyValueEntry
	value    []byte
	revision uint64
}

func (e memoryEntry) Value() []byte    { return e.value }
func (e memoryEntry) Revision() uint64 { return e.revision }

type memoryStream struct {
	jetstream.JetStream
	g      *generation
	bucket *memoryBucket
}

func (s memoryStream) Publish(_ context.Context, _ string, data []byte, _ ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	s.bucket.mu.Lock()
	on := s.bucket.revision // one worker has the claim, so no other has written
	s.bucket.mu.Unlock()
	revision, err := s.bucket.write(s.g, data, on)
	return &jetstream.PubAck{Sequence: revision}, err
}

// simulate plays in a bubble and stops the worker in the end.
func simulate(t *testing.T, odd odd, stored []*nostr.Event, play func(m *simulation)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newSimulation(t, odd, stored)
		play(m)
		m.stop()
	})
}
