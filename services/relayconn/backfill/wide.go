package backfill

import (
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/layers"
	"tendril.dev/services/relayconn/leads"
	"tendril.dev/services/relayconn/negentropy"
	"tendril.dev/services/relayconn/recent"
)

const (
	// worthWide is how many bytes the filters of a batch have at least for it to be worth while to
	// reconcile everything that the relay has in their place.
	worthWide = 64 << 10
	// wideSaves is how many times less than these filters such a session may take, as a divisor.
	wideSaves = 8
	// missingBytes is about how many bytes it takes to fetch an event that turns out to be missing.
	missingBytes = 1000
	// mostByItem is how many events may be known here for each reference and root event that the
	// relay is asked for. If there are more, most of them are of others, and the relay will not
	// have them.
	mostByItem = 8
	// wideWait is how long a batch waits at most until others have brought what they ask for.
	wideWait = time.Minute
)

// wide is the way of a batch by one session about everything that the relay has, in place of one
// for each of thousands of references and root events: where little of it is missing here, that
// takes a few hundred bytes. What is missing is fetched, whatever it is, and judged by ingest as
// everything.
type wide struct {
	b       *Backfill
	session *negentropy.Wide
	batch   *batch
	finds   []*find // that it stands for
	ids     [][32]byte
	seen    map[[32]byte]bool
	failed  bool
	again   bool // if it fails it is tried once more, when others have brought what they ask for
	probe   *leads.Probe
}

// widen begins such a session for the finds of a batch that wait, if it is worth while. wait: not
// yet, because others bring much at the moment.
func (b *Backfill) widen(batch *batch, now time.Time) (begun, wait bool) {
	if b.narrow || batch.narrow {
		return false, false
	}
	var finds []*find
	bytes, late, blocked := 0, false, batch.unshared > 0
	for _, f := range b.finds {
		if f.batch == batch {
			finds = append(finds, f)
			bytes, late, blocked = bytes+f.bytes, late || f.late, blocked || f.blocked(now)
		}
	}
	if bytes < worthWide {
		return false, false
	}
	quiet := !blocked && (b.board() == nil || now.Sub(b.board().QuietSince(now)) >= b.o.Settle)
	var probe *leads.Probe
	if late && !quiet && !b.probed && b.board() != nil {
		probe = b.board().Probe(now)
	}
	if late && !quiet && probe == nil {
		// What is on its way, or will be as soon as discovery has told of it, would be missing.
		if batch.wideBy.IsZero() {
			batch.wideBy = now.Add(wideWait)
		}
		batch.narrow = !now.Before(batch.wideBy)
		return false, !batch.narrow
	}
	w := &wide{b: b, batch: batch, finds: finds, seen: map[[32]byte]bool{}, again: late && !quiet, probe: probe}
	b.wide, b.probed = w, true
	w.session = b.neg.AddWide(negentropy.Bounds{
		Bytes: bytes / wideSaves, Missing: min(bytes/missingBytes, fullAt), Known: b.mostKnown(),
	}, w)
	return true, false
}

// Missing takes ids to be fetched if the session comes to its end.
func (w *wide) Missing(ids [][32]byte) (fresh, dropped int) {
	for _, id := range ids {
		if !w.seen[id] {
			w.seen[id] = true
			w.ids = append(w.ids, id)
			fresh++
		}
	}
	return fresh, 0
}

// Ask notes that the session has failed.
func (w *wide) Ask(negentropy.Span) { w.failed = true }

// Settled notes the end: what is missing is known, or the relay is asked by filters.
func (w *wide) Settled() {
	b := w.b
	b.wide = nil
	w.probe.End(w.failed && !w.session.Hopeless())
	switch {
	case w.failed:
		b.narrow = !w.again || w.session.Hopeless()
		return
	case b.wantedIDs+len(w.ids) > mostWanted:
		w.batch.narrow = true
		return
	}
	all := &find{b: b, batch: w.batch, covers: w.finds}
	for _, f := range w.finds {
		all.unit.Groups = append(all.unit.Groups, f.unit.Groups...)
	}
	all.wide = &wanted{groups: all.unit.Groups}
	w.batch.finds = append(w.batch.finds, all)
	w.batch.running -= len(w.finds)
	b.finds = slices.DeleteFunc(b.finds, func(f *find) bool { return slices.Contains(w.finds, f) })
	b.spent = true
	filter{all, 0}.Missing(w.ids)
}

// unkeptWide has a batch asked by its filters of which the relay did not deliver what it had named
// when it was asked for everything. That may have been something that no filter asks for.
func (b *Backfill) unkeptWide(batch *batch) {
	var again []*find
	for _, f := range batch.finds {
		if f.wide != nil && f.unkept {
			again = append(again, f.covers...)
		}
	}
	if again == nil {
		return
	}
	b.narrow = true
	batch.finds = slices.DeleteFunc(batch.finds, func(f *find) bool { return f.wide != nil && f.unkept })
	if batch.lost {
		return // everything is found out again
	}
	batch.named = recent.New[[32]byte](mostNamed)
	for _, f := range again {
		b.findLater(f)
	}
}

// mostKnown is how many events may be known here if the relay is to have most of them.
func (b *Backfill) mostKnown() int { return mostByItem * (len(b.wanted.Full) + len(b.wanted.Roots)) }

// size is about how many bytes the filters of a unit take.
func size(u negentropy.Unit) (bytes int) {
	for _, group := range u.Groups {
		for _, f := range group {
			bytes += layers.Bytes(f)
		}
	}
	return bytes
}

// wanted is what groups of filters ask for.
type wanted struct {
	groups [][]nostr.Filter
	values map[string]map[string]bool // by tag, of filters by one tag; nil: not gathered yet
	others []nostr.Filter
}

// asksFor reports whether one of the filters matches an event.
func (w *wanted) asksFor(ev *nostr.Event) bool {
	if w.values == nil {
		w.gather()
	}
	for _, tag := range ev.Tags {
		if len(tag) > 1 && w.values[tag[0]][tag[1]] {
			return true
		}
	}
	return slices.ContainsFunc(w.others, func(f nostr.Filter) bool { return f.Matches(ev) })
}

func (w *wanted) gather() {
	w.values = map[string]map[string]bool{}
	for _, group := range w.groups {
		for _, f := range group {
			if len(f.Tags) != 1 || len(f.Kinds)+len(f.Authors)+len(f.IDs) > 0 {
				w.others = append(w.others, f)
				continue
			}
			for name, values := range f.Tags {
				if w.values[name] == nil {
					w.values[name] = map[string]bool{}
				}
				for _, v := range values {
					w.values[name][v] = true
				}
			}
		}
	}
}
