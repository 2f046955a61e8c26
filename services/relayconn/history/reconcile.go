package history

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/services/relayconn/moment"
	"tendril.dev/services/relayconn/wire"
)

const (
	// sessionsAtOnce is how many sessions are open at once, unless the relay takes fewer.
	sessionsAtOnce = 8
	// sessionSilence is how long a relay may take to answer, and drip how much longer one session
	// may be left without an answer while the relay answers others, as a factor.
	sessionSilence, drip = 10 * time.Second, 6
	// serviceTime is how long ingest may take to answer, and mostFailures how often in a row it is
	// asked in vain, each time after a wait twice as long, before filters are asked for by REQ.
	serviceTime, mostFailures = 20 * time.Second, 3
	// roomWait is how long a session waits that found no room for the relay's message.
	roomWait = time.Second
	// lookAgain is how often it is looked whether other connections have brought what units wait
	// for, and longestWait how long a unit waits at most.
	lookAgain, longestWait = 250 * time.Millisecond, time.Minute
)

// NegRelay is the other side of a session of NIP-77; *wire.Conn is one.
type NegRelay interface {
	NegOpen(ctx context.Context, sub string, filter nostr.Filter, message []byte) error
	NegMsg(ctx context.Context, sub string, message []byte) error
	NegClose(ctx context.Context, sub string) error
}

// Service works out what to say to the relay; query.Reconciler is one.
type Service interface {
	Begin(ctx context.Context, session query.Reconciliation) (first []byte, known uint64, err error)
	Continue(ctx context.Context, session query.Reconciliation, answer []byte) (query.Step, error)
}

// Negentropy is what asking by NIP-77 needs.
type Negentropy struct {
	Relay   NegRelay
	Service Service
	Room    *Room
	Seq     func() uint64        // of the log: what is known to be accepted
	Known   func(id string) bool // accepted already: need not be fetched
	Walks   *Walks               // of all connections of the worker; nil: each asks for itself
}

// Room bounds what all connections of a process ask ingest at once, and what they keep of relays'
// messages meanwhile, in bytes.
type Room struct{ bytes, questions *semaphore.Weighted }

const (
	roomBytes = 16 << 20
	// copies is how many times a message lies in memory while it is looked at: as it came, as it
	// goes over the bus, and as ids in the answer.
	copies = 4
	// asksAtOnce is how many questions of a process ingest is given at once.
	asksAtOnce = 16
)

// NewRoom returns the room that all connections of a process share.
func NewRoom() *Room {
	return &Room{semaphore.NewWeighted(roomBytes), semaphore.NewWeighted(asksAtOnce)}
}

// reconciler finds out by NIP-77 which events of a relay are missing here, on one connection. What
// to say is worked out by ingest, which knows what is accepted, held and rejected. Every message
// says by itself what is still in question; so a session that the relay has forgotten is opened
// again with the message that was said last, and nothing is lost.
type reconciler struct {
	*Negentropy
	h        *History
	units    []*unit   // that wait for their turn
	active   []*search // at most twice as many as may be open at once
	open     map[string]*search
	results  chan Result
	atOnce   int // sessions that the relay takes, as far as is known
	turns    int
	crowded  time.Time // when a NOTICE said last that a session was one too many
	hold     time.Time // nothing is said before
	lookAt   time.Time // when units are looked at again; zero: at once
	failures int       // of ingest, in a row
	heard    time.Time // when the relay answered last in any session
	spoken   bool      // it has
	narrow   bool      // it refuses a session about everything
	off      bool      // it does not reconcile
}

// Result is an answer of ingest.
type Result struct {
	search *search
	size   int64 // of the room that the relay's message takes
	known  uint64
	step   query.Step
	err    error
	first  bool
}

func newReconciler(h *History, n *Negentropy) *reconciler {
	return &reconciler{Negentropy: n, h: h, open: map[string]*search{}, results: make(chan Result), atOnce: sessionsAtOnce}
}

func (r *reconciler) idle() bool { return len(r.units)+len(r.active) == 0 }

func (r *reconciler) fullNow() bool { return r.h.wantedIDs >= fullAt }

// add has groups of filters reconciled: by one session about everything if they are many, else by
// their units. late: other connections have been asked for the same before.
func (r *reconciler) add(b *batch, groups [][]nostr.Filter, late bool) {
	if size(groups) >= worthEverything && !r.narrow {
		r.push(&unit{batch: b, groups: groups, late: late, everything: true})
		return
	}
	r.addUnits(b, groups, late)
}

func (r *reconciler) addUnits(b *batch, groups [][]nostr.Filter, late bool) {
	for _, some := range unitsOf(groups, r.h.o.Limits.Bytes()) {
		r.push(&unit{batch: b, groups: some, late: late})
	}
}

func (r *reconciler) push(u *unit) {
	u.batch.running++
	r.units, r.lookAt = append(r.units, u), time.Time{}
}

// restart forgets everything.
func (r *reconciler) restart(ctx context.Context) error {
	active := r.active
	r.units, r.active = nil, nil
	for _, x := range active {
		x.ended = true
		if err := r.close(ctx, x); err != nil {
			return err
		}
	}
	return nil
}

// ask begins with units and says what can be said.
func (r *reconciler) ask(ctx context.Context, now time.Time) error {
	if r.off {
		return r.giveUpAll(ctx)
	}
	if r.idle() || now.Before(r.hold) {
		return nil
	}
	for len(r.active) < 2*r.atOnce && !r.fullNow() {
		u := r.nextUnit(now)
		if u == nil {
			break
		}
		r.active = append(r.active, u.searches(r.Seq())...)
	}
	for n, x := range slices.Clone(r.active) {
		switch {
		case x.state == waiting:
			x.state = asking
			session := x.session()
			r.question(ctx, Result{search: x, first: true}, func(ctx context.Context, a *Result) {
				a.step.Message, a.known, a.err = r.Service.Begin(ctx, session)
			})
		case x.state != ready || r.fullNow() || x.id == "" && len(r.open) >= r.atOnce:
		case !r.spoken && n > 0: // many relays do not reconcile, so one session is tried first
		default:
			if err := r.say(ctx, x, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// nextUnit takes the unit that is next; nil: none is, because they wait for what other connections
// are asking for. A session about everything waits until nothing is under way.
func (r *reconciler) nextUnit(now time.Time) *unit {
	if now.Before(r.lookAt) {
		return nil
	}
	for i, u := range r.units {
		if u.waitBy.IsZero() {
			u.waitBy = now.Add(longestWait)
		}
		busy := r.Walks != nil && (u.everything && !r.Walks.Quiet(now) || !u.everything && slices.ContainsFunc(u.groups, func(group []nostr.Filter) bool {
			return r.Walks.Busy(shared(group), now)
		}))
		if busy && now.Before(u.waitBy) {
			continue
		}
		r.units = slices.Delete(r.units, i, i+1)
		if busy && u.everything { // too much would be missing
			r.addUnits(u.batch, u.groups, u.late)
			u.batch.running--
			return r.nextUnit(now)
		}
		return u
	}
	r.lookAt = now.Add(lookAgain)
	return nil
}

// say says what must be said, in a session that is open or in a new one.
func (r *reconciler) say(ctx context.Context, x *search, now time.Time) error {
	x.state, x.asked = said, now
	x.said++
	x.bytes += 2 * len(x.message) // it goes over the wire as hex digits
	if x.id != "" {
		return r.Relay.NegMsg(ctx, x.id, x.message)
	}
	r.turns++
	x.id, x.turn, x.fresh = r.h.o.Name("n"), r.turns, true
	r.open[x.id] = x
	return r.Relay.NegOpen(ctx, x.id, x.session().Filter, x.message)
}

// close closes the session of a search at the relay.
func (r *reconciler) close(ctx context.Context, x *search) error {
	id := r.lost(x)
	if id == "" {
		return nil
	}
	return r.Relay.NegClose(ctx, id)
}

// lost notes that the session of a search is not open any more, and returns its name.
func (r *reconciler) lost(x *search) (id string) {
	id, x.id = x.id, ""
	delete(r.open, id)
	return id
}

// question asks ingest, while others go on.
func (r *reconciler) question(ctx context.Context, a Result, ask func(context.Context, *Result)) {
	go func() {
		if a.err = r.Room.questions.Acquire(ctx, 1); a.err == nil {
			limited, cancel := context.WithTimeout(ctx, serviceTime)
			ask(limited, &a)
			cancel()
			r.Room.questions.Release(1)
		}
		r.Room.bytes.Release(a.size)
		select {
		case r.results <- a:
		case <-ctx.Done():
		}
	}()
}

// told takes in an answer of ingest.
func (r *reconciler) told(ctx context.Context, a Result, now time.Time) error {
	x := a.search
	switch {
	case x.ended:
		return nil
	case errors.Is(a.err, query.ErrTooMany):
		return r.smaller(ctx, x, now)
	case errors.Is(a.err, query.ErrRefused) && a.first:
		return r.giveUp(ctx, x) // the filter is too large for the bus
	case errors.Is(a.err, query.ErrRefused):
		return r.unable(ctx, "its message breaks the rules of the protocol: "+a.err.Error())
	case a.err != nil:
		return r.failed(ctx, x, a.err, now)
	}
	r.failures = 0
	if a.first && a.known == 0 && !x.unit.everything {
		x.byREQ(x.piece())
		return r.pieceDone(ctx, x)
	}
	x.takes(r.h, a.step.Missing)
	x.here, x.alone = max(x.here, a.known), x.alone+a.step.Alone
	x.state, x.message = ready, a.step.Message
	switch {
	case a.first && a.known == 0 || x.tooMuch():
		return r.giveUp(ctx, x)
	case len(x.message) == 0:
		return r.pieceDone(ctx, x)
	case x.endless():
		return r.cannot(ctx, x, "a session with it does not come to an end")
	}
	return nil
}

// failed notes that ingest has not answered. That is not the relay's fault: the session is opened
// again later, or the rest is asked for by REQ, which waits for ingest in its own way.
func (r *reconciler) failed(ctx context.Context, x *search, err error, now time.Time) error {
	r.h.o.Warn("reconcile", "ingest does not say what is known here", "error", err)
	if !now.Before(r.hold) { // several that fail together are one failure
		if r.failures >= mostFailures {
			return r.giveUp(ctx, x)
		}
		r.hold = now.Add(time.Second << r.failures)
		r.failures++
	}
	x.state = waiting
	if x.message != nil {
		x.state = ready
	}
	return r.close(ctx, x)
}

// pieceDone goes on with the next piece of time, or ends the search.
func (r *reconciler) pieceDone(ctx context.Context, x *search) error {
	if err := r.close(ctx, x); err != nil {
		return err
	}
	if !x.pieceDone() {
		r.end(x)
	}
	return nil
}

// giveUp has the rest of a search asked for by REQ, or a unit about everything by its filters.
func (r *reconciler) giveUp(ctx context.Context, x *search) error {
	if err := r.close(ctx, x); err != nil {
		return err
	}
	x.byREQ(x.rest())
	r.end(x)
	return nil
}

func (r *reconciler) end(x *search) {
	x.ended = true
	r.active = slices.DeleteFunc(r.active, func(o *search) bool { return o == x })
	if u := x.unit; u.left == 1 {
		r.unitDone(u)
	} else {
		u.left--
	}
	r.h.spent = true
}

// unitDone goes on with what follows from a unit: ids to fetch, and times to be asked for by REQ.
func (r *reconciler) unitDone(u *unit) {
	h, b := r.h, u.batch
	switch {
	case u.everything && len(u.spans[0]) > 0:
		r.addUnits(b, u.groups, u.late)
	case u.everything:
		if _, dropped := h.name(b, u.ids); dropped {
			r.addUnits(b, u.groups, u.late)
		}
	case u.unknown() && !u.late && !r.off:
		for _, group := range u.groups {
			h.walkShared(b, group)
		}
	default:
		for _, filters := range u.walks() {
			for _, some := range h.together(filters) {
				h.begin(b, &task{way: h.walk(some)})
			}
		}
	}
	b.running--
}

// smaller goes on with half of the time, because too many events match the filter.
func (r *reconciler) smaller(ctx context.Context, x *search, now time.Time) error {
	switch {
	case x.unit.everything:
		return r.cannot(ctx, x, "")
	case x.halve(nostr.Timestamp(now.Unix())):
		return r.close(ctx, x)
	case !r.spoken:
		return r.unable(ctx, "it takes no filter, however short the time")
	}
	r.h.o.Warn("too many to reconcile", "the relay reconciles too few events at once; what is left is asked for by REQ")
	return r.giveUp(ctx, x)
}

// cannot notes that a session has failed, by which the relay shows that it does not reconcile,
// unless it is one about everything.
func (r *reconciler) cannot(ctx context.Context, x *search, why string) error {
	if x.unit.everything {
		r.narrow = true
		return r.giveUp(ctx, x)
	}
	return r.unable(ctx, why)
}

// unable notes that the relay does not reconcile. All is asked for by REQ from now on.
func (r *reconciler) unable(ctx context.Context, why string) error {
	r.off = true
	r.h.o.Warn("unable", "the relay does not reconcile (NIP-77); REQ is used", "reason", why[:min(len(why), 300)])
	return r.giveUpAll(ctx)
}

// giveUpAll has everything asked for by REQ.
func (r *reconciler) giveUpAll(ctx context.Context) error {
	for !r.idle() {
		if len(r.active) == 0 {
			r.active = r.units[0].searches(0)
			r.units = r.units[1:]
		}
		if err := r.giveUp(ctx, r.active[0]); err != nil {
			return err
		}
	}
	return nil
}

// hear takes in a message of the relay. It reports false if the message is of no session.
func (r *reconciler) hear(ctx context.Context, m wire.Message, now time.Time) (ours bool, err error) {
	if m.Kind == wire.Notice {
		return r.notice(ctx, m.Reason, now)
	}
	x := r.open[m.Sub]
	if x == nil {
		return false, nil
	}
	switch m.Kind {
	case wire.NegMsg:
		return true, r.answer(ctx, x, m, now)
	case wire.NegErr, wire.Closed:
		return true, r.refused(ctx, x, m.Reason, now)
	}
	return false, nil
}

// answer takes in what the relay answered, and asks ingest what to say to that.
func (r *reconciler) answer(ctx context.Context, x *search, m wire.Message, now time.Time) error {
	if x.state != said {
		return nil // nobody asked
	}
	r.heard, r.spoken = now, true
	switch {
	case m.TooLarge:
		return r.smaller(ctx, x, now)
	case len(m.Frame) == 0:
		return r.unable(ctx, "its message is not one of NIP-77")
	}
	x.bytes, x.fresh = x.bytes+2*len(m.Frame), false
	room := min(int64(copies*len(m.Frame)), roomBytes)
	if !r.Room.bytes.TryAcquire(room) {
		x.state = ready // to say the same again
		r.hold = moment.Later(r.hold, now.Add(roomWait))
		if x.endless() {
			return r.giveUp(ctx, x)
		}
		return r.close(ctx, x)
	}
	x.state = asking
	session, frame := x.session(), m.Frame
	r.question(ctx, Result{search: x, size: room}, func(ctx context.Context, a *Result) {
		a.step, a.err = r.Service.Continue(ctx, session, frame)
	})
	return nil
}

// refused takes in that the relay has ended a session.
func (r *reconciler) refused(ctx context.Context, x *search, reason string, now time.Time) error {
	asked := x.state == asking
	r.lost(x)
	if asked {
		return nil // what comes of what it said before opens another session
	}
	switch refusalOf(reason) {
	case unproved:
		if x.said < 2 {
			x.state = ready
			r.hold = moment.Later(r.hold, now.Add(wire.ProofWait))
			return nil
		}
	case tooMany:
		return r.smaller(ctx, x, now)
	case fewer:
		return r.fewer(ctx, x, reason, now)
	case quiet:
		x.state = ready // when it may be asked again
		return nil
	case forgotten: // whoever answers every session so has none
		if x.state = ready; r.spoken && !x.endless() {
			return nil
		}
	}
	return r.cannot(ctx, x, reason)
}

// fewer notes that a session was one too many: from now on there are no more at once than are open
// now. If none are, all wait, but not for ever.
func (r *reconciler) fewer(ctx context.Context, x *search, reason string, now time.Time) error {
	x.state, r.atOnce = ready, max(1, min(r.atOnce, len(r.open)))
	if len(r.open) > 0 {
		x.said-- // it will be said when there is room
		return nil
	}
	if x.refused++; x.refused > mostRefused {
		return r.unable(ctx, reason)
	}
	r.hold = moment.Later(r.hold, now.Add(r.h.o.Limits.Cooldown()))
	return nil
}

// notice takes in a NOTICE of the relay, and reports whether it is about a session. It does not say
// which one.
func (r *reconciler) notice(ctx context.Context, text string, now time.Time) (ours bool, err error) {
	var last *search // the session that was opened last of those that the relay has not answered
	for _, x := range r.open {
		if x.state == said && x.fresh && (last == nil || x.turn > last.turn) {
			last = x
		}
	}
	if last == nil {
		return false, nil
	}
	switch about := concerns(text); {
	case about && wantsFewer(text):
		r.crowded = now
		// It may have been another, which is open then, as far as the relay is concerned.
		if err := r.close(ctx, last); err != nil {
			return true, err
		}
		return true, r.fewer(ctx, last, text, now)
	case about || !r.spoken && notUnderstood(text):
		return true, r.cannot(ctx, last, text)
	}
	return false, nil
}

// due gives up what the relay does not answer.
func (r *reconciler) due(ctx context.Context, now time.Time) error {
	for _, x := range slices.Clone(r.active) {
		if x.ended || x.state != said || now.Before(r.patience(x)) {
			continue
		}
		excused := r.h.o.Limits.QuietAfter(x.asked) || r.crowded.After(x.asked)
		if !excused || x.endless() {
			if err := r.cannot(ctx, x, "it does not answer"); err != nil {
				return err
			}
			continue
		}
		x.state = ready // it was one too many, or came too early
		if err := r.close(ctx, x); err != nil {
			return err
		}
	}
	return nil
}

// patience is when a session is given up.
func (r *reconciler) patience(x *search) time.Time {
	return moment.Earlier(moment.Later(x.asked, r.heard).Add(sessionSilence), x.asked.Add(drip*sessionSilence))
}

// next is when something becomes due by itself after now; zero: nothing does.
func (r *reconciler) next(now time.Time) (next time.Time) {
	if r.idle() {
		return next
	}
	next = moment.NextAfter(now, r.hold, r.lookAt)
	for _, x := range r.active {
		if x.state == said {
			next = moment.Earlier(next, moment.NextAfter(now, r.patience(x)))
		}
	}
	return next
}

// unread keeps a time in which nothing was read from counting as the relay's silence.
func (r *reconciler) unread(d time.Duration) {
	for _, x := range r.active {
		x.asked = x.asked.Add(d)
	}
	r.heard = moment.Shift(r.heard, d)
}

// Hear takes in a message of the relay if it is of a session of NIP-77, and reports whether it is.
func (h *History) Hear(ctx context.Context, m wire.Message, now time.Time) (ours bool, err error) {
	if h.rec == nil {
		return false, nil
	}
	return h.rec.hear(ctx, m, now)
}
