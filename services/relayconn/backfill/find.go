package backfill

import (
	"context"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/leads"
	"tendril.dev/services/relayconn/negentropy"
	"tendril.dev/services/relayconn/wire"
)

const (
	// mostWanted is how many events may be waiting to be fetched on a connection: as many as the
	// largest message of a relay names. What is named beyond it is found again later.
	mostWanted = 20_000
	// fullAt is how many of them keep sessions from going on.
	fullAt = 5000
)

// find is the way of a unit of filters by NIP-77: what the relay has of them and is not known here
// is found out first, and then fetched by id.
type find struct {
	b       *Backfill
	batch   *batch
	unit    negentropy.Unit
	running int                 // filters of which not all was said
	spans   [][]negentropy.Span // of each filter: the times to be asked for by REQ
	unkept  bool                // the relay did not deliver what it had named
	gone    bool                // all was forgotten
	wide    *wanted             // of one that stands for what a session about everything has found
	covers  []*find             // and in place of which
	late    bool                // other connections have been asked for the same before
	found   bool                // another find has led to it, which would lead to it again
	bytes   int                 // of the filters, about
	by      *leads.Lead         // what it waits for; nil: nothing that is known
	looked  int                 // groups of which nothing is being asked for by others
	within  int                 // and items of the next group
	waitBy  time.Time           // how long it waits at most; zero: it has not waited
}

// filter is one filter of a unit; it owns a search.
type filter struct {
	*find
	n int
}

// Missing takes ids to be fetched.
func (f filter) Missing(ids [][32]byte) (fresh, dropped int) {
	if f.gone {
		return 0, 0
	}
	for _, id := range ids {
		switch {
		case f.batch.named.Has(id):
		case f.b.wantedIDs >= mostWanted:
			dropped++
		default:
			f.batch.named.Add(id)
			f.batch.ids = append(f.batch.ids, wantedID{id, f.find})
			f.b.wantedIDs++
			fresh++
		}
	}
	return fresh, dropped
}

// Ask notes a time to be asked for by REQ.
func (f filter) Ask(span negentropy.Span) { f.spans[f.n] = append(f.spans[f.n], span) }

// Settled notes that all is said of a filter. When it is of all filters of a unit, what is to be
// asked for by REQ is, the filters of a group together.
func (f filter) Settled() {
	if f.running--; f.running > 0 || f.gone {
		return
	}
	f.batch.running--
	if f.unknown() && !f.late {
		for _, group := range f.unit.Groups {
			f.b.walksShared(f.batch, group, true)
		}
	} else {
		f.b.walkSpans(f.batch, f.unit, f.spans)
	}
	f.spans = nil
}

// unknown reports whether all of all filters must be asked for by REQ.
func (f *find) unknown() bool {
	for _, spans := range f.spans {
		if len(spans) != 1 || spans[0] != (negentropy.Span{}) {
			return false
		}
	}
	return true
}

// find begins to find out what is missing of units of filters. kind tells what is to be known of
// these finds: whether they are late, and found.
func (b *Backfill) find(batch *batch, units []negentropy.Unit, kind find) {
	for _, u := range units {
		f := kind
		f.b, f.batch, f.unit, f.bytes = b, batch, u, size(u)
		batch.finds = append(batch.finds, &f)
		b.findLater(&f)
	}
}

func (b *Backfill) findLater(f *find) {
	f.batch.running++
	f.by, f.looked, f.within, f.waitBy, b.lookAt = nil, 0, 0, time.Time{}, time.Time{}
	b.finds = append(b.finds, f)
}

// reconciles reports whether the relay is asked by NIP-77 for some work.
func (b *Backfill) reconciles(w Work) bool {
	return b.neg != nil && b.neg.Able() && w.Reconcile && w.Since == nil
}

// reconcile says to the relay what can be said.
func (b *Backfill) reconcile(ctx context.Context, now time.Time) error {
	if b.neg == nil {
		return nil
	}
	for b.neg.Hungry() || !b.neg.Able() {
		f := b.nextFind(now)
		if f == nil {
			break
		}
		b.search(f)
	}
	return b.neg.Ask(ctx, now)
}

// nextFind takes what is to be found out next; nil: nothing is, because everything waits for a
// session about everything or for other connections. While everything does, it looks again after
// lookAgain only.
func (b *Backfill) nextFind(now time.Time) *find {
	if b.wide != nil || now.Before(b.lookAt) && b.neg.Able() {
		return nil
	}
	b.lookAt = time.Time{}
	var waits *batch
	for i, f := range b.finds {
		if b.neg.Able() {
			if f.batch == waits {
				continue
			}
			begun, wait := b.widen(f.batch, now)
			if begun {
				return nil
			}
			if wait {
				waits = f.batch
			}
			if wait || f.blocked(now) {
				b.lookAt = now.Add(lookAgain)
				continue
			}
		}
		b.finds = slices.Delete(b.finds, i, i+1)
		b.lookAt = time.Time{} // there may be more that does not wait
		return f
	}
	return nil
}

// search begins with a unit.
func (b *Backfill) search(f *find) {
	filters := f.unit.Filters()
	f.running, f.spans = len(filters), make([][]negentropy.Span, len(filters))
	for n := range filters {
		owner := filter{f, n}
		if b.neg.Able() {
			b.neg.Add(filters[n], owner)
			continue
		}
		owner.Ask(negentropy.Span{})
		owner.Settled()
	}
}

// walkSpans has the filters of a unit asked for by REQ, each for its own times.
func (b *Backfill) walkSpans(batch *batch, u negentropy.Unit, spans [][]negentropy.Span) {
	most := 0
	for _, of := range spans {
		most = max(most, len(of))
	}
	for i := range most {
		for _, group := range u.Groups {
			var filters []nostr.Filter
			for n, f := range group {
				if i < len(spans[n]) {
					f.Since, f.Until = spans[n][i].Since, spans[n][i].Until
					filters = append(filters, f)
				}
			}
			b.walks(batch, filters, true)
		}
	}
}

// Lacks notes that the relay says of itself that it does not know NIP-77.
func (b *Backfill) Lacks(ctx context.Context) error {
	if b.neg == nil {
		return nil
	}
	return b.neg.Lacks(ctx)
}

// Results is where ingest's answers come, to be handed to [Backfill.Told]; nil: nothing is asked.
func (b *Backfill) Results() <-chan negentropy.Result {
	if b.neg == nil {
		return nil
	}
	return b.neg.Results()
}

// Told takes in an answer of ingest.
func (b *Backfill) Told(ctx context.Context, r negentropy.Result, now time.Time) error {
	return b.neg.Answered(ctx, r, now)
}

// Hear takes in a message of the relay if it is of a session of NIP-77, and reports whether it is.
func (b *Backfill) Hear(ctx context.Context, m wire.Message, now time.Time) (ours bool, err error) {
	if b.neg == nil {
		return false, nil
	}
	if m.Kind == wire.Notice {
		return b.neg.Notice(ctx, m.Reason, now)
	}
	return b.neg.Hear(ctx, m, now)
}
