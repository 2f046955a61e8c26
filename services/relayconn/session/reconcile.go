package session

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/lib/reconcile"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/wire"
)

const (
	// sessionsAtOnce is how many sessions of NIP-77 are open at once, unless the relay takes fewer.
	sessionsAtOnce = 8
	// sessionSilence is how long a relay may take to answer in one of its sessions.
	sessionSilence = 10 * time.Second
	// serviceTime is how long ingest may take to answer, and is left alone when it did not.
	serviceTime = 20 * time.Second
	// roomWait is how long a session waits that found no room.
	roomWait = time.Second
	// mostRefused is how often in a row a relay may refuse the only session, or want quiet.
	mostRefused = 3
	// besides is what a message has beside the values of a wide filter.
	besides = 8192
	// worthEverything is how many bytes filters have at least for one session about everything that
	// the relay has to be tried in place of one for each thousand values. It takes a few hundred
	// bytes where little is missing here, and is given up when it takes an eighth of the filters,
	// or when too many events are missing.
	worthEverything, everythingSaves = 64 << 10, 8
	// mostSplits is how often the times of a unit are halved, and shortest the shortest piece.
	mostSplits, shortest = 200, 3600
	// beginning is a moment before the first event of Nostr. What is dated before is in the oldest
	// piece all the same.
	beginning nostr.Timestamp = 1_600_000_000
	// A search may take so many messages, and one more for each so many events that the relay has
	// and that are not known here.
	mostMessages, namedByMessage = 256, 64
	// mostNamedOfOne is how many events that are not known here a relay may name of one unit.
	mostNamedOfOne = 1_000_000
	// fullAt is how many events wait to be fetched on a connection when no more are looked for.
	fullAt = 5000
)

// Service works out what to say to the relay; query.Reconciler is one.
type Service interface {
	Begin(ctx context.Context, session proto.ReconcileQuery) (query.Step, error)
	Continue(ctx context.Context, session proto.ReconcileQuery, answer []byte) (query.Step, error)
}

// Negentropy is what asking by NIP-77 needs.
type Negentropy struct {
	Service Service
	// Room bounds what all connections of a process ask ingest at once, and what they keep of
	// relays' messages meanwhile, in bytes.
	Room        *semaphore.Weighted
	Seq         func() uint64       // of the log: what is known to be accepted
	Coordinator *HistoryCoordinator // of all connections of the worker
}

const (
	// RoomBytes is the room that all connections of a process share.
	RoomBytes = 16 << 20
	// A question takes so much room at least, and copies times the relay's message: that lies in
	// memory as it came, as it goes over the bus, and as ids in the answer.
	questionBytes, copies = 1 << 20, 4
	// partBytes is how much of a relay's message goes to ingest at once.
	partBytes = 512 << 10
)

// reconciler finds out by NIP-77 which events of a relay are missing here, on one connection. What
// to say is worked out by ingest, which knows what is accepted, held and rejected. Every message
// says by itself what is still in question; so a session that the relay has forgotten is opened
// again with the message that was said last, and nothing is lost.
type reconciler struct {
	*Options
	governor    *governor
	units       []*unit   // that have not begun
	active      []*search // that have begun
	results     chan result
	atOnce      int       // sessions that the relay takes, as far as is known
	pausedUntil time.Time // no session is opened or goes on before
	spoken      bool      // the relay has answered in a session
	narrow      bool      // the relay refuses a session about everything
	off         bool      // the relay does not reconcile
}

// unit is a group of filters that are reconciled, each in one session for each piece of time.
type unit struct {
	batch      *batch
	group      Group
	everything bool       // its one filter is for everything that the relay has
	ids        [][32]byte // that are missing of that
	left       int        // searches that have not ended
	byREQ      []bool     // of each filter: it must be asked for by REQ
	splits     int
	named      int // events that the relay has named, each once
}

// state is where a search stands.
type state int

const (
	toSay        state = iota // the message, or to begin if there is none
	asksIngest                // what to say
	awaitsAnswer              // of the relay
)

// search finds out what a relay has of one filter of a unit, in one session.
type search struct {
	request // whose id is empty while no session is open
	*unit
	n        int // of the filter
	about    proto.ReconcileQuery
	state    state
	message  []byte   // what to say, or was said last
	more     [][]byte // what to say after that; together they say all that is in question
	parts    [][]byte // of the relay's answer, which ingest has not seen yet
	refused  int      // how often the relay wanted quiet, or took no session though none was open, since it answered last
	messages int      // that were said
	bytes    int      // of all messages, both ways
	known    uint64   // events known here
	lacking  uint64   // of these, those that the relay has turned out not to have
	named    int      // events that the relay has named and that are not known here
	// allFrom is when the oldest of the known events was made, and hasFrom of those that the relay has
	// turned out to have.
	allFrom, hasFrom nostr.Timestamp
	opening          bool // what was said last is the first message
}

// result is an answer of ingest.
type result struct {
	search *search
	step   query.Step
	err    error
	first  bool
}

func newReconciler(o *Options, g *governor) *reconciler {
	return &reconciler{Options: o, governor: g, results: make(chan result), atOnce: sessionsAtOnce,
		off: o.Negentropy == nil}
}

// add has a batch reconciled: by one session about everything, if that may be, its filters are many
// and no other walk is under way, else by wide filters.
func (r *reconciler) add(b *batch, everything bool) {
	everything = everything && size(b.groups) >= worthEverything && !r.narrow &&
		len(r.Negentropy.Coordinator.Others(b.lease, time.Now())) == 0
	groups := b.groups
	if everything {
		groups = []Group{{{}}}
	} else if b.found() {
		groups = r.wide(b.items)
	}
	for _, g := range groups {
		b.running++
		r.units = append(r.units, &unit{batch: b, group: g, everything: everything, left: len(g),
			byREQ: make([]bool, len(g))})
	}
}

// wide are the filters that sessions are about.
func (r *reconciler) wide(items Set) []Group { return Wide(items, r.governor.limits.Bytes()-besides) }

// begin begins with the first unit: a search for each of its filters.
func (r *reconciler) begin() {
	u := r.units[0]
	r.units = slices.Delete(r.units, 0, 1)
	for n, f := range u.group {
		r.active = append(r.active, &search{unit: u, n: n, about: proto.ReconcileQuery{Filter: f, Seq: r.Negentropy.Seq()}})
	}
}

// restart forgets everything.
func (r *reconciler) restart() {
	for _, x := range r.active {
		r.close(x)
	}
	r.units, r.active = nil, nil
}

// ask begins with units and says what can be said. While enough waits to be fetched no more is
// looked for.
func (r *reconciler) ask(ctx context.Context, now time.Time, enough bool) {
	if now.Before(r.pausedUntil) {
		return
	}
	for len(r.units) > 0 && len(r.active) < 2*r.atOnce && !enough {
		r.begin()
	}
	for n, x := range r.active[:min(len(r.active), 2*r.atOnce)] {
		switch {
		case x.state == toSay && x.message == nil:
			r.ingest(ctx, x, nil)
		case x.state != toSay || enough || x.id == "" && r.count() >= r.atOnce:
		case !r.spoken && n > 0: // many relays do not reconcile, so one session is tried first
		default:
			r.say(x, now)
		}
	}
}

// say says what must be said, in a session that is open or in a new one.
func (r *reconciler) say(x *search, now time.Time) {
	x.state, x.asked, x.heard = awaitsAnswer, now, now
	x.messages++
	x.bytes += 2 * len(x.message) // it goes over the wire as hex digits
	if x.id != "" {
		r.Asker.NegMsg(x.id, x.message)
		return
	}
	x.id, x.answered = r.governor.name("n"), false
	r.governor.open[x.id] = x
	r.Asker.NegOpen(x.id, x.about.Filter, x.message)
}

// close closes the session of a search at the relay.
func (r *reconciler) close(x *search) {
	id := x.id
	if x.id = ""; id == "" {
		return
	}
	delete(r.governor.open, id)
	r.Asker.NegClose(id)
}

// ingest asks ingest what to say to a message of the relay, or at first to none, while others go
// on. It reports whether there is room; else nothing is said for a while.
func (r *reconciler) ingest(ctx context.Context, x *search, message []byte) bool {
	size := max(copies*len(message), questionBytes)
	for _, part := range x.parts {
		size += len(part)
	}
	size = min(size, RoomBytes)
	if !r.Negentropy.Room.TryAcquire(int64(size)) {
		r.pausedUntil = later(r.pausedUntil, time.Now().Add(roomWait))
		return false
	}
	x.state = asksIngest
	a, about := result{search: x, first: message == nil}, x.about
	go func() {
		limited, cancel := context.WithTimeout(ctx, serviceTime)
		if a.first {
			a.step, a.err = r.Negentropy.Service.Begin(limited, about)
		} else {
			a.step, a.err = r.Negentropy.Service.Continue(limited, about, message)
		}
		cancel()
		r.Negentropy.Room.Release(int64(size))
		select {
		case r.results <- a:
		case <-ctx.Done():
		}
	}()
	return true
}

// told takes in an answer of ingest.
func (r *reconciler) told(ctx context.Context, a result, now time.Time) {
	x := a.search
	switch {
	case !slices.Contains(r.active, x): // it has ended
	case a.err == nil:
		r.learned(ctx, x, a)
	case errors.Is(a.err, query.ErrTooMany):
		r.smaller(x, now)
	case errors.Is(a.err, query.ErrRefused) && a.first:
		r.end(x, true) // the filter is too large for the bus
	case errors.Is(a.err, query.ErrRefused):
		r.unable("its message breaks the rules of the protocol: " + a.err.Error())
	default: // which is not the relay's fault
		r.warn("reconcile", "ingest does not say what is known here; it is asked again", "error", a.err)
		r.pausedUntil = later(r.pausedUntil, now.Add(serviceTime))
		r.sayAgain(x)
	}
}

// sayAgain has a search say its last message again, in another session.
func (r *reconciler) sayAgain(x *search) {
	x.state, x.parts = toSay, nil
	r.close(x)
}

// askNext asks ingest about the next part of what the relay has answered.
func (r *reconciler) askNext(ctx context.Context, x *search) {
	part := x.parts[0]
	x.about.Opening = x.opening && len(x.parts) == 1
	if x.parts = x.parts[1:]; !r.ingest(ctx, x, part) {
		r.sayAgain(x)
	}
}

// learned takes in what follows from what the relay said.
func (r *reconciler) learned(ctx context.Context, x *search, a result) {
	if x.everything {
		x.ids = append(x.ids, a.step.Missing...)
	} else {
		x.unit.named += x.batch.name(a.step.Missing)
	}
	x.named, x.lacking = x.named+len(a.step.Missing), x.lacking+a.step.OnlyHere
	if a.first {
		x.known, x.allFrom = a.step.Known, a.step.Oldest
	} else if from := a.step.Oldest; from != 0 && (x.hasFrom == 0 || from < x.hasFrom) {
		x.hasFrom = from
	}
	x.opening = a.first
	if len(a.step.Message) > 0 {
		x.more = append(x.more, a.step.Message)
	}
	switch {
	case len(x.parts) > 0 && !x.tooMuch():
		r.askNext(ctx, x)
		return
	case len(x.more) > 0:
		x.message, x.more = x.more[0], x.more[1:]
	default:
		x.message = nil
	}
	x.state = toSay
	switch {
	case a.first && x.known == 0 && x.splits == 0 || x.tooMuch():
		r.end(x, true) // REQ is the shorter way
	case len(x.message) == 0:
		x.lookBelow()
		r.end(x, false)
	case x.endless():
		r.cannot(x, "a session with it does not come to an end")
	}
}

// end ends a search, whose filter must be asked for by REQ or not. The last search of a unit says
// what follows from it: ids to fetch, and filters to be asked for by REQ.
func (r *reconciler) end(x *search, byREQ bool) {
	u := x.unit
	u.byREQ[x.n] = u.byREQ[x.n] || byREQ
	r.active = slices.DeleteFunc(r.active, func(o *search) bool { return o == x })
	r.close(x)
	if u.left--; u.left > 0 {
		return
	}
	switch {
	case u.everything && byREQ:
		r.add(u.batch, false)
	case u.everything:
		u.batch.name(u.ids)
	default:
		u.batch.toWalk = append(u.batch.toWalk, u.group.Narrow(u.byREQ)...)
	}
	u.batch.running--
}

// smaller goes on with two halves of the time, because too many events match the filter. Both have
// the second at which it is cut, because there are relays that take since for the moment after
// which, not from which, events are wanted.
func (r *reconciler) smaller(x *search, now time.Time) {
	older := &search{unit: x.unit, n: x.n, about: x.about}
	from, to := nostr.Timestamp(0), nostr.Timestamp(now.Unix())
	if since := x.about.Filter.Since; since != nil {
		from = *since
	}
	if until := x.about.Filter.Until; until != nil {
		to = *until
	}
	if to > beginning {
		from = max(from, beginning)
	}
	cut := from + (to-from)/2
	switch {
	case x.everything:
		r.cannot(x, "")
	case x.splits < mostSplits && to-from >= shortest:
		x.splits++
		x.left++
		x.about.Filter.Since, older.about.Filter.Until = &cut, &cut
		x.state, x.message, x.more, x.parts, x.messages = toSay, nil, nil, nil, 0
		x.named, x.lacking, x.hasFrom = 0, 0, 0
		r.active = slices.Insert(r.active, slices.Index(r.active, x)+1, older)
		r.close(x)
	case !r.spoken:
		r.unable("it takes no filter, however short the time")
	default:
		r.warn("too many to reconcile", "the relay reconciles too few events at once; what is left is asked for by REQ")
		r.end(x, true)
	}
}

// cannot notes that a session has failed, by which the relay shows that it does not reconcile,
// unless it is one about everything.
func (r *reconciler) cannot(x *search, why string) {
	if x.everything {
		r.narrow = true
		r.end(x, true)
		return
	}
	r.unable(why)
}

// unable notes that the relay does not reconcile. All is asked for by REQ from now on.
func (r *reconciler) unable(why string) {
	r.off = true
	r.warn("unable", "the relay does not reconcile (NIP-77); REQ is used", "reason", why[:min(len(why), 300)])
	for len(r.units)+len(r.active) > 0 {
		if len(r.active) == 0 {
			r.begin()
		}
		r.end(r.active[0], true)
	}
}

// answer takes in what the relay answered, and asks ingest what to say to that.
func (r *reconciler) answer(ctx context.Context, x *search, m wire.Message, now time.Time) {
	if x.state != awaitsAnswer {
		return // it was not asked
	}
	r.spoken, x.refused = true, 0
	r.governor.heard(x, now)
	for _, o := range r.active { // a relay answers one after the other
		o.heard = now
	}
	x.bytes += 2 * len(m.Frame)
	switch {
	case len(m.Frame) == 0:
		r.unable("its message is not one of NIP-77")
	case x.endless():
		r.end(x, true)
	default:
		var err error
		if x.parts, err = reconcile.Split(m.Frame, partBytes); err != nil {
			r.unable(err.Error())
			return
		}
		r.askNext(ctx, x)
	}
}

// Relays have words of their own for what they do not take. NIP-77 has the prefixes `blocked:` and
// `closed:`; the rest are words of strfry, khatru and our own.
var (
	sessions   = regexp.MustCompile(`(?i)too many (concurrent|subscriptions|sessions|neg)|maximum concurrent`)
	events     = regexp.MustCompile(`(?i)too (many|big|large|broad)`)
	negentropy = regexp.MustCompile(`(?i)negentropy|neg-|neg request|nip-?77`)
	confused   = regexp.MustCompile(`(?i)unknown|unrecogni|unsupported|not supported|parse|bad msg|unexpected|invalid message|command`)
)

// refused takes in that the relay has ended a session.
func (r *reconciler) refused(x *search, reason string, now time.Time) {
	delete(r.governor.open, x.id)
	if x.id = ""; x.state == asksIngest {
		return // what comes of what it said before opens another session
	}
	x.state = toSay
	why := wire.ReadRefusal(reason)
	switch {
	case why.Proof && !x.proved:
		x.proved, r.pausedUntil = true, later(r.pausedUntil, now.Add(proofWait))
	case why.Quiet:
		if x.refused++; x.refused > mostRefused {
			r.cannot(x, reason)
		}
	case sessions.MatchString(reason):
		r.fewer(x, reason, now)
	case events.MatchString(reason):
		r.smaller(x, now)
	case strings.HasPrefix(strings.ToLower(reason), "closed") && r.spoken && !x.endless(): // it has forgotten the session
	default:
		r.cannot(x, reason)
	}
}

// count counts the sessions that are open.
func (r *reconciler) count() (n int) {
	for _, x := range r.active {
		if x.id != "" {
			n++
		}
	}
	return n
}

// fewer notes that a session was one too many: from now on there are no more at once than are open
// now. If none are, all wait, but not for ever.
func (r *reconciler) fewer(x *search, reason string, now time.Time) {
	open := r.count()
	if r.atOnce = max(1, min(r.atOnce, open)); open > 0 {
		x.messages-- // it will be said when there is room
		return
	}
	if x.refused++; x.refused > mostRefused {
		r.unable(reason)
		return
	}
	r.pausedUntil = later(r.pausedUntil, now.Add(r.Rules.Cooldown))
}

// notice takes in a NOTICE of the relay, and reports whether it is about a session. It does not say
// which one: it may be any that the relay has not answered.
func (r *reconciler) notice(text string, now time.Time) (ours bool) {
	var unanswered []*search
	for _, x := range r.active {
		if x.state == awaitsAnswer && !x.answered {
			unanswered = append(unanswered, x)
		}
	}
	about := negentropy.MatchString(text)
	switch {
	case len(unanswered) == 0:
		return false
	case about && sessions.MatchString(text):
		for _, x := range unanswered {
			x.state = toSay
			r.close(x)
		}
		r.fewer(unanswered[0], text, now)
	case about || !r.spoken && confused.MatchString(text):
		r.cannot(unanswered[0], text)
	default:
		return false
	}
	return true
}

// silent gives up a session that the relay does not answer.
func (r *reconciler) silent(x *search, now time.Time) {
	why := "it does not answer"
	if r.governor.pausedUntil.After(x.asked) {
		why = "rate-limited, and it does not answer"
	}
	r.close(x)
	r.refused(x, why, now)
}

// tooMuch reports whether a session about everything is not worth it. A relay that lacks much of
// what is known here may not show all that it has.
func (x *search) tooMuch() bool {
	return x.everything && (x.bytes > size(x.batch.groups)/everythingSaves || len(x.ids) > fullAt ||
		x.lacking > x.known/everythingSaves)
}

// endless reports whether the relay draws a search out.
func (x *search) endless() bool {
	return x.messages > mostMessages+x.unit.named/namedByMessage || x.unit.named > mostNamedOfOne
}

// lookBelow has the batch look by REQ for what is older than all that the relay has shown of a
// filter: a relay may reconcile the newest events of a set only, or none, and say nothing.
func (x *search) lookBelow() {
	filter, until := x.about.Filter, x.hasFrom
	if x.lacking == 0 {
		until = x.allFrom
	}
	if until == 0 && filter.Until == nil {
		until = nostr.Now()
	}
	if until != 0 {
		filter.Until = &until
	}
	x.batch.below = append(x.batch.below, below{filter, x.everything})
}
