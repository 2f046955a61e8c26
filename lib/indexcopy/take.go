package indexcopy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/eventdb"
	"tendril.dev/proto"
)

const (
	// firstOffer is how long the first offer may take; moreOffers how long others may take then.
	firstOffer = 2 * time.Second
	moreOffers = 250 * time.Millisecond
	// maxOffers bounds how many are looked at.
	maxOffers = 64
	// beginWait is how long a replica may take to make its checkpoint.
	beginWait = 30 * time.Second
	// askAgain is about how long is waited when all who could give a copy are busy.
	askAgain = time.Second
	// spare is what a copy leaves free on the disk, in bytes.
	spare = 64 << 20
)

// Taker takes a copy of the index of another process, in place of its own.
type Taker struct {
	Conn     *nats.Conn
	JS       jetstream.JetStream
	Index    *eventdb.DB // bound to the log, and not used yet
	From     []string    // users who are asked, the best first: see [proto.IndexCopies]
	Name     string      // of this process, for people
	Progress func(what string)
	Metrics  *Metrics
	Log      *slog.Logger

	Worth uint64 // by how many sequences a copy must be ahead; 0: [Worth]

	// For tests.
	wait, pause time.Duration          // for a chunk; 0: chunkWait, chunkPause
	first       time.Duration          // for the first offer; 0: firstOffer
	free        func() (uint64, error) // bytes of the disk; nil: those of the index's
}

// Take looks how far the index is behind the log, and takes a copy of one that is further, if
// somebody gives one. It reports whether it did. If not, the index is as it was, or empty, and the
// log has everything that it lacks. An error means that the index cannot be used, or that ctx
// ended.
func (t Taker) Take(ctx context.Context) (bool, error) {
	deadline := time.Time{}
	failed := map[string]bool{}
	for {
		w, lacks, size, err := t.look(ctx)
		if err != nil {
			return false, t.without(ctx, err)
		}
		if lacks < w.worth {
			return false, nil
		}
		if deadline.IsZero() {
			deadline = time.Now().Add(patience(lacks))
		}
		t.tell("asking for a copy of the index")
		offers, err := t.ask(ctx, w, failed)
		if err != nil {
			return false, t.without(ctx, err)
		}
		how, err := t.try(ctx, choose(offers, w), w, size, failed)
		switch {
		case err != nil || how == taken:
			return how == taken, err
		case how == asksOthers && len(failed) < maxOffers:
			continue
		case how != waits || time.Now().After(deadline):
			t.Log.Info("nobody gives a copy of the event index; it is made from the log", "messages", lacks, "offers", len(offers), "busy", how == waits)
			return false, nil
		}
		t.tell("waiting for a copy of the index: others are being given one")
		select {
		case <-time.After(askAgain/2 + rand.N(askAgain)):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// without returns the error that ends the start, if the index cannot be used or ctx has ended. Any
// other leaves the index to be made from the log.
func (t Taker) without(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, errUnusable) {
		return err
	}
	t.Log.Warn("no copy of the event index is looked for; it is made from the log", "error", err)
	return nil
}

// tried is how it went with some offers.
type tried int

const (
	nothing    tried = iota // there was none
	taken                   // a copy
	asksOthers              // one failed; others may not have been asked
	waits                   // those that are left are busy
)

// try takes the first copy of these offers that can be taken. failed are the replicas of which none
// could.
func (t Taker) try(ctx context.Context, offers []offer, w want, size int64, failed map[string]bool) (r tried, err error) {
	for _, o := range offers {
		if failed[o.Replica] {
			continue
		}
		err := errBusy
		if !o.Busy {
			err = t.takeFrom(ctx, o, w, size)
		}
		switch {
		case err == nil:
			return taken, nil
		case ctx.Err() != nil:
			return nothing, ctx.Err()
		case errors.Is(err, errUnusable):
			return nothing, err
		case errors.Is(err, errBusy):
			r = max(r, waits)
		default:
			failed[o.Replica] = true
			r = max(r, asksOthers)
			t.Log.Warn("a copy of the event index could not be taken", "from", o.Name, "error", err)
		}
	}
	return r, nil
}

func (t Taker) tell(what string) {
	if t.Progress != nil {
		t.Progress(what)
	}
}

// look compares the index with the log. size is the most that an index of it may have, in bytes.
func (t Taker) look(ctx context.Context) (w want, lacks uint64, size int64, err error) {
	w.worth = cmp.Or(t.Worth, Worth)
	if w.log, err = t.Index.Log(); err != nil {
		return w, 0, 0, fmt.Errorf("%w: %w", errUnusable, err)
	}
	w.seq = t.Index.Seq()
	stream, err := t.JS.Stream(ctx, proto.StreamEvents)
	if err != nil {
		return w, 0, 0, fmt.Errorf("look at the log: %w", err)
	}
	state := stream.CachedInfo().State
	w.head = state.LastSeq
	return w, missing(w.seq, w.head, state.Msgs), most(state.Bytes), nil
}

// ask collects offers, until there is one that none can be better than, and that has not failed.
func (t Taker) ask(ctx context.Context, w want, failed map[string]bool) (offers []offer, err error) {
	inbox := t.Conn.NewInbox()
	sub, err := t.Conn.SubscribeSync(inbox + ".*")
	if err != nil {
		return nil, fmt.Errorf("ask for a copy of the index: %w", err)
	}
	defer sub.Unsubscribe()
	ask, err := json.Marshal(proto.IndexAsk{For: t.Name})
	if err != nil {
		return nil, fmt.Errorf("ask for a copy of the index: %w", err)
	}
	ranks := map[string]int{} // by the subject of the answer
	for rank, user := range t.From {
		reply := inbox + "." + user
		ranks[reply] = rank
		if err := t.Conn.PublishRequest(proto.IndexOffers(user), reply, ask); err != nil {
			return nil, fmt.Errorf("ask for a copy of the index: %w", err)
		}
	}
	until := time.Now().Add(cmp.Or(t.first, firstOffer))
	for silent := 0; len(offers) < maxOffers && silent < len(t.From); {
		wait, cancel := context.WithDeadline(ctx, until)
		msg, err := sub.NextMsgWithContext(wait)
		cancel()
		if errors.Is(err, nats.ErrNoResponders) { // of one of the users nobody is there
			silent++
			continue
		}
		if err != nil {
			break // whoever has not answered by now is not asked
		}
		rank := ranks[msg.Subject]
		o := offer{user: t.From[rank], rank: rank}
		if parse(msg.Data, &o.IndexOffer) != nil || msg.Header.Get(micro.ErrorCodeHeader) != "" {
			continue
		}
		o.Name = fmt.Sprintf("%.*s", nameBytes, o.Name)
		if offers = append(offers, o); len(offers) == 1 {
			until = time.Now().Add(moreOffers)
		}
		if o.best(w) && !failed[o.Replica] {
			break
		}
	}
	return offers, ctx.Err()
}

// errUnusable is wrapped by errors after which the index cannot be used any more.
var errUnusable = errors.New("the event index cannot be opened")

// takeFrom takes the copy of one replica, of at most size bytes.
func (t Taker) takeFrom(ctx context.Context, o offer, w want, size int64) error {
	begun := time.Now()
	f, err := t.begin(ctx, o, size)
	if err != nil {
		return err
	}
	t.Log.Info("taking a copy of the event index", "from", o.Name, "seq", f.Seq, "bytes", f.total, "have_seq", w.seq, "log_seq", w.head)
	err = f.fetch(ctx)
	f.end()
	if err == nil {
		t.tell("opening the copy of the index")
		if err = t.adopt(ctx, f.Seq); errors.Is(err, errUnusable) {
			return err
		}
	}
	t.Metrics.ended(wayTaken, err == nil)
	if err != nil {
		return errors.Join(err, t.Index.Discard())
	}
	t.Log.Info("took a copy of the event index", "from", o.Name, "seq", t.Index.Seq(), "bytes", f.total, "took", time.Since(begun).Round(time.Millisecond))
	return nil
}

// begin has the replica make a checkpoint, and prepares a folder for its files.
func (t Taker) begin(ctx context.Context, o offer, size int64) (*fetch, error) {
	subject, err := proto.IndexSubject(o.user, o.Replica, proto.IndexBegin)
	if err != nil {
		return nil, err
	}
	ask, err := json.Marshal(proto.IndexAsk{For: t.Name})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, beginWait)
	defer cancel()
	answer, err := request(ctx, t.Conn, subject, ask)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	f := &fetch{Taker: t, user: o.user, replica: o.Replica}
	if err := json.Unmarshal(answer, &f.IndexCopy); err != nil {
		return nil, fmt.Errorf("begin: %w: %w", errBad, err)
	}
	if err := f.prepare(o.Seq, size); err != nil {
		f.end()
		return nil, errors.Join(err, t.Index.Discard())
	}
	return f, nil
}

// request asks one replica something.
func request(ctx context.Context, conn *nats.Conn, subject string, data []byte) ([]byte, error) {
	msg, err := conn.RequestWithContext(ctx, subject, data)
	if err != nil {
		return nil, err
	}
	switch code := msg.Header.Get(micro.ErrorCodeHeader); code {
	case "":
		return msg.Data, nil
	case proto.QueryBusy:
		return nil, errBusy
	case proto.QueryGone:
		return nil, errGone
	default:
		return nil, fmt.Errorf("refused: %.200q", msg.Header.Get(micro.ErrorHeader))
	}
}

// adopt puts the files that were fetched in the place of the index's own.
func (t Taker) adopt(ctx context.Context, atLeast uint64) error {
	w, _, _, err := t.look(ctx) // the giver has read on meanwhile
	if err != nil {
		return err
	}
	err = t.Index.Adopt(atLeast, w.head)
	if err != nil && !errors.Is(err, eventdb.ErrNotAdopted) {
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	return err
}
