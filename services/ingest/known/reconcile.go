package known

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
	"tendril.dev/proto"
)

const (
	// maxStep is the largest query of a step, in bytes: NATS takes no larger message.
	maxStep = 1 << 20
	// maxMessage is the largest message of a relay, in bytes: what it may name as missing fits into
	// an answer.
	maxMessage = 600 << 10
	// stepTime is for the answer to one step, the wait for a sequence of the log included.
	stepTime = 15 * time.Second
	// mostPacked is how many events of a filter there may be.
	mostPacked = 250_000
)

// asking bounds what one step says to a relay. The relay's message is bounded by maxStep.
var asking = reconcile.Limits{Frame: reconcile.DefaultFrame, Ranges: 1 << 15, Marks: reconcile.DefaultFrame}

// errBehind: the index has not read what the query names.
var errBehind = errors.New("this replica has not read the log that far")

// step reads a query of a step. The filter's limit is dropped.
func (s *server) step(data []byte, reply string) (job func(context.Context) error, err error) {
	var q proto.ReconcileQuery
	if len(data) > maxStep {
		return nil, fmt.Errorf("%w: larger than %d bytes", errQuery, maxStep)
	}
	if err := json.Unmarshal(data, &q); err != nil {
		return nil, fmt.Errorf("%w: %w", errQuery, err)
	}
	if len(q.Message) > maxMessage {
		return nil, fmt.Errorf("the relay's message has more than %d bytes", maxMessage)
	}
	q.Filter.Limit, q.Filter.LimitZero = 0, false
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, stepTime)
		defer cancel()
		answer, err := s.next(ctx, q, s.memory)
		if err != nil {
			return err
		}
		data, err := json.Marshal(answer)
		if err != nil {
			return fmt.Errorf("write a step: %w", err)
		}
		return s.conn.Publish(reply, data)
	}, nil
}

// next works out what to say to the relay, and what of its events is missing here.
func (k Known) next(ctx context.Context, q proto.ReconcileQuery, m *memory) (a proto.ReconcileAnswer, err error) {
	if err := k.Index.WaitFor(ctx, q.Seq); err != nil {
		return a, fmt.Errorf("%w: %w", errBehind, err)
	}
	view := k.Index.View()
	defer view.Close()
	g, err := m.get(q.Filter.String(), q.Seq, func() (gathered, error) { return k.gather(ctx, view, q.Filter) })
	if err != nil {
		return a, err
	}
	set := g.items
	if len(q.Message) == 0 {
		all, err := set.Sum(ctx, reconcile.Everything)
		if err != nil {
			return a, fmt.Errorf("read the index: %w", err)
		}
		a.Known = all.Count
		a.Message, err = reconcile.Start(ctx, set, asking)
		return a, err
	}
	var told [][32]byte
	var listed uint64
	a.Message, listed, err = reconcile.Continue(ctx, set, q.Message, asking, func(id [32]byte) error {
		told = append(told, id)
		return nil
	})
	if err == nil {
		a.Missing, err = k.missing(told)
	}
	// What the relay has named and is known here may be known though it does not match the filter.
	if both := uint64(len(told) - len(a.Missing)/32); listed > both {
		a.Alone = listed - both
	}
	return a, err
}

// missing returns the ids that have to be fetched, one after the other.
func (k Known) missing(told [][32]byte) (missing []byte, err error) {
	var unheld [][32]byte
	for _, id := range told {
		if k.Held.ByID(hex.EncodeToString(id[:])) == nil {
			unheld = append(unheld, id)
		}
	}
	// What was accepted since it was held is in a view that is taken now.
	view := k.Index.View()
	defer view.Close()
	for _, id := range unheld {
		known, err := k.has(view, hex.EncodeToString(id[:]))
		if err != nil {
			return nil, err
		}
		if !known {
			missing = append(missing, id[:]...)
		}
	}
	return missing, nil
}

// has reports whether an event was rejected or is accepted, whatever filter it matches.
func (k Known) has(view *eventdb.View, id string) (bool, error) {
	if _, rejected := k.Rejected.Answer(id, time.Now()); rejected {
		return true, nil
	}
	accepted, err := view.Has(id)
	if err != nil {
		return false, fmt.Errorf("read the index: %w", err)
	}
	return accepted, nil
}

// gather reads what is known for a filter. It may be used for as long as forgetAfter; reconcile
// says why that is right, and missing looks at what is there now.
func (k Known) gather(ctx context.Context, view *eventdb.View, f nostr.Filter) (g gathered, err error) {
	g.seq, g.at = view.Seq(), time.Now()
	var others []reconcile.Item
	err = k.others(ctx, view, k.Held.All(), f, tellsRejected(f), func(id string, at nostr.Timestamp) error {
		i := reconcile.Item{CreatedAt: at}
		if _, err := hex.Decode(i.ID[:], []byte(id)); err != nil {
			return fmt.Errorf("id %q: %w", id, err)
		}
		others = append(others, i)
		return nil
	})
	if err != nil {
		return g, err
	}
	if g.items, err = view.Packed(ctx, f, mostPacked); err == nil && len(others) > 0 {
		g.items = reconcile.Pack(append(g.items, others...))
	}
	return g, err
}

// tellsRejected reports whether it is known well enough which rejected events match a filter. Their
// tags are not kept: by tags alone every rejected event would match, and the more of them are in
// the set that the relay does not have, the more has to be said until that is settled. Those that
// it has are not missing either, see has.
func tellsRejected(f nostr.Filter) bool { return len(f.Tags) == 0 || f.Authors != nil || f.IDs != nil }
