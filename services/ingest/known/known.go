// Package known says which events of a relay need not be fetched: those that are accepted or held,
// and those that were rejected within the last days. The micro service grasp.query.ids finds out
// step by step which of a relay's are not among them (NIP-77). It decides nothing.
package known

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/lib/reconcile"
	"tendril.dev/proto"
)

const (
	// maxMessage is the largest message of a relay, in bytes: what it may name as missing fits into
	// an answer.
	maxMessage = 600 << 10
	// mostPacked is how many events of a filter there may be.
	mostPacked = 250_000
	// keptBytes and keptFor bound the sets that are kept for the next steps of a session, and for
	// sessions with other relays that are asked the same.
	keptBytes = 32 << 20
	keptFor   = 30 * time.Second
)

// asking bounds what one step says to a relay, so that its answer is not longer than maxMessage,
// unless it lists more for a fingerprint than others do.
var asking = reconcile.Limits{Frame: reconcile.DefaultFrame, Ranges: 1 << 15,
	Marks: reconcile.LimitsFor(2 * maxMessage).Marks}

// Known is where ids come from.
type Known struct {
	Index    *eventdb.DB
	Held     *held.Set
	Rejected *Rejected

	mu    sync.Mutex
	kept  map[[32]byte]gathered // by hash of the filter
	bytes int
	since time.Time
}

// gathered is what is known for a filter at a sequence of the log.
type gathered struct {
	items reconcile.Packed // accepted, held and rejected
	seq   uint64
}

// Questions are answered by every replica.
func (k *Known) Questions() map[string]query.Answerer {
	k.kept = map[[32]byte]gathered{}
	return map[string]query.Answerer{proto.SubjectQueryIDs: query.Asked(k.step)}
}

// step answers one step of a reconciliation: what to say to the relay, and what of its events is
// missing here.
func (k *Known) step(ctx context.Context, q proto.ReconcileQuery, send func(any) error) error {
	if len(q.Message) > maxMessage {
		return fmt.Errorf("%w: the relay's message has more than %d bytes", query.ErrQuestion, maxMessage)
	}
	if err := k.Index.WaitFor(ctx, q.Seq); err != nil {
		return fmt.Errorf("this replica has not read the log that far: %w", err)
	}
	set, err := k.set(ctx, q.Filter, q.Seq)
	if err != nil {
		return err
	}
	var a proto.ReconcileAnswer
	if len(q.Message) == 0 {
		if a.Known = uint64(len(set)); a.Known > 0 {
			a.Oldest = set[0].CreatedAt
		}
		a.Message, err = reconcile.Start(ctx, set, asking)
	} else {
		err = k.goOn(ctx, set, q.Message, q.Opening, &a)
	}
	if err != nil {
		return err
	}
	return send(a)
}

// goOn works out what to say next.
func (k *Known) goOn(ctx context.Context, set reconcile.Packed, message []byte, opening bool, a *proto.ReconcileAnswer) (err error) {
	var told [][32]byte
	var shown reconcile.Shown
	a.Message, shown, err = reconcile.Continue(ctx, set, message, opening, asking, func(id [32]byte) error {
		told = append(told, id)
		return nil
	})
	if err != nil {
		return err
	}
	a.Missing, err = k.missing(told)
	// What the relay has named and is known here may be known though it does not match the filter.
	if both := uint64(len(told) - len(a.Missing)/32); shown.Listed > both {
		a.OnlyHere = shown.Listed - both
	}
	a.Oldest = shown.Oldest
	return err
}

// set returns what is known for a filter at a sequence or later. It may be as old as keptFor:
// missing looks at what is there now.
func (k *Known) set(ctx context.Context, f nostr.Filter, seq uint64) (reconcile.Packed, error) {
	name, now := sha256.Sum256([]byte(f.String())), time.Now()
	k.mu.Lock()
	if now.Sub(k.since) > keptFor {
		k.bytes, k.since = 0, now
		clear(k.kept)
	}
	g, has := k.kept[name]
	k.mu.Unlock()
	if has && g.seq >= seq {
		return g.items, nil
	}
	g, err := k.gather(ctx, f)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if size := cap(g.items) * reconcile.ItemBytes; k.bytes+size < keptBytes {
		k.kept[name], k.bytes = g, k.bytes+size
	}
	return g.items, nil
}

// gather reads what is known for a filter, whether it is served or hidden by a ban. Held events are
// read first: what is accepted in the meantime is in one of both. The filter's limit is dropped.
func (k *Known) gather(ctx context.Context, f nostr.Filter) (g gathered, err error) {
	f.Limit, f.LimitZero = 0, false
	var others []reconcile.Item
	for _, e := range k.Held.All() {
		item := reconcile.Item{CreatedAt: e.Event.CreatedAt}
		if f.Matches(e.Event) && nostr.ReadHex(item.ID[:], e.Event.ID) {
			others = append(others, item)
		}
	}
	// The tags of rejected events are not kept. By tags alone every one of them would match, and all
	// that the relay does not have would have to be said.
	if len(f.Tags) == 0 || f.Authors != nil || f.IDs != nil {
		others = append(others, k.Rejected.Matching(f, time.Now())...)
	}
	view := k.Index.View()
	defer view.Close()
	g.seq = view.Seq()
	if g.items, err = view.All().Packed(ctx, f, mostPacked); err == nil && len(others) > 0 {
		g.items = reconcile.Pack(append(g.items, others...))
	}
	return g, err
}

// missing returns the ids that must be fetched, one after the other: none that is known now,
// whether it matches the filter or not.
func (k *Known) missing(told [][32]byte) (missing []byte, err error) {
	var unknown [][32]byte
	for _, id := range told {
		name := hex.EncodeToString(id[:])
		if _, rejected := k.Rejected.Find(name, time.Now()); !rejected && k.Held.ByID(name) == nil {
			unknown = append(unknown, id)
		}
	}
	accepted, err := k.Index.HasEach(unknown)
	if err != nil {
		return nil, fmt.Errorf("read the index: %w", err)
	}
	for i, id := range unknown {
		if !accepted[i] {
			missing = append(missing, id[:]...)
		}
	}
	return missing, nil
}
