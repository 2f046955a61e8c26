package eventdb

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// waitMost bounds every wait for the index.
const waitMost = 30 * time.Second

// layout names how the index is laid out and what it means. Change it with either, and every index
// is rebuilt from the log.
const layout = "12"

// rules are what two indexes of one log must have in common to be the same.
func (db *DB) rules() string {
	return fmt.Sprintf("layout %s, deletions disrespected %t", layout, db.opts.KeepDeleted)
}

// position is the last record that an index has applied: where it stands in the log, and which it
// is. An index belongs to a log only if that has the same message there.
type position struct {
	seq uint64
	id  string // of the event, or of the one that has left the log there
}

func positionOf(r Record) position {
	if r.Removed != "" {
		return position{r.Seq, r.Removed}
	}
	return position{r.Seq, r.Event.ID}
}

func (p position) encode() []byte { return append(binary.BigEndian.AppendUint64(nil, p.seq), p.id...) }

// position reads which record was applied last; the zero value: none was.
func (db *DB) position() (p position, err error) {
	view := db.View()
	defer view.Close()
	value, found, err := view.reads.get(metaLast)
	if err != nil || !found {
		return position{}, err
	}
	if len(value) < 8 {
		return position{}, fmt.Errorf("the index's position has %d bytes", len(value))
	}
	return position{binary.BigEndian.Uint64(value), string(value[8:])}, nil
}

// isIn reports whether the log has that record at that place, and since when. An event that was
// replaced or deleted since is not there: then it cannot be told whether the log is the same.
func (p position) isIn(ctx context.Context, js jetstream.JetStream) (is bool, at time.Time, err error) {
	if p.seq == 0 {
		return true, time.Now(), nil
	}
	m, found, err := bus.Next(ctx, js, proto.StreamEvents, ">", p.seq)
	if err != nil || !found || m.Seq != p.seq {
		return false, at, err
	}
	if removed := m.Header.Get(proto.HeaderRemoved); removed != "" {
		return removed == p.id, m.Time, nil
	}
	ev, err := decode(m.Data)
	return err == nil && ev.ID == p.id, m.Time, nil
}

// longAway is after which time an index is made again: what says that events have left the log goes
// itself after [proto.RemovedKept]. The difference is for clocks that are wrong.
const longAway = proto.RemovedKept / 2

// Bind makes sure that the index belongs to the log that js has now. An index is dropped and starts
// from nothing if it is of another log, of a later state of this one, or of a state from which this
// one has gone on differently since it was restored, or if it was made under other rules. Whether
// the log has the index's last record where the index has it decides that. Call Bind before the
// index is used: subscribers are not told. Where the other log has no event at all, nothing is
// dropped and the error is that of [DB.LogGone].
func Bind(ctx context.Context, js jetstream.JetStream, db *DB, log *slog.Logger) error {
	known, rules, err := db.madeFrom()
	if err != nil {
		return err
	}
	last, err := db.position()
	if err != nil {
		return err
	}
	seq := db.Seq() // before the log's head is asked for: a writer in this process moves both
	made, head, err := lookAtLog(ctx, js)
	if err != nil {
		return err
	}
	other := known != "" && known != made
	if other {
		_, found, err := bus.Next(ctx, js, proto.StreamEvents, proto.AnyEvent, 1)
		if err == nil && !found {
			err = db.LogGone()
		}
		if err != nil {
			return err
		}
	}
	same, at, err := last.isIn(ctx, js)
	switch {
	case err != nil:
		return fmt.Errorf("compare the index with the log: %w", err)
	case known == "":
	case other || seq > head:
		log.Warn("the event index is of another log and is rebuilt", "index_seq", seq, "log_seq", head)
	case !same:
		log.Warn("the log does not have the last event of the index where the index has it, so the index is rebuilt: "+
			"NATS was restored, or that event was replaced while this process was away", "index_seq", last.seq, "log_seq", head)
	case head > last.seq && db.opts.Now().Time().Sub(at) > longAway:
		log.Info("the event index was away for long, and is rebuilt from the log", "index_time", at, "log_seq", head)
	case rules == db.rules():
		// What is behind the last record is read again: only writers' marks are proved by nothing.
		return db.goBack(last.seq)
	default:
		log.Info("the event index was made by another version of Tendril or under other settings, and is rebuilt from the "+
			"log", "log_seq", head)
	}
	return db.reset(db.rules(), made)
}

// goBack has the log read again from behind a sequence.
func (db *DB) goBack(seq uint64) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed.Load() {
		return ErrClosed
	}
	if err := db.pebble.Set(metaSeq, binary.BigEndian.AppendUint64(nil, seq), pebble.NoSync); err != nil {
		return fmt.Errorf("note where the index stands: %w", err)
	}
	db.setSeq(seq)
	return nil
}

// LogGone is asked when there is no log, or one without events. It gives an error when the index
// was made from a log that had some: an empty one in its place would hide that they are lost. The
// operator may say that this is meant ([Options.ForgottenLog]).
func (db *DB) LogGone() error {
	made, _, err := db.madeFrom()
	if err != nil || made == "" || slices.Contains(db.opts.ForgottenLog, made) {
		return err
	}
	view := db.View().All()
	defer view.Close()
	for _, err := range view.IDs(context.Background(), nostr.Filter{Limit: 1}) {
		if err != nil {
			return err
		}
		return fmt.Errorf("the log of %s is gone: the index of this process knows events of it, and NATS has none; "+
			"see to it that NATS runs on its right volume, or restore the log, or, to begin again without these events, set "+
			"NGIT_FORGET_LOG=%s", made, made)
	}
	return nil
}

// madeFrom is when the log was made that the index was made from, and under which rules; empty:
// none yet.
func (db *DB) madeFrom() (made, rules string, err error) {
	view := db.View()
	log, _, badLog := view.reads.get(metaLog)
	under, _, badRules := view.reads.get(metaRules)
	return string(log), string(under), errors.Join(badLog, badRules, view.Close())
}

// lookAtLog returns when the log was made, and its head. A stream that was deleted and made again
// has another time of creation.
func lookAtLog(ctx context.Context, js jetstream.JetStream) (made string, head uint64, err error) {
	stream, err := js.Stream(ctx, proto.StreamEvents)
	if err != nil {
		return "", 0, fmt.Errorf("look at the log: %w", err)
	}
	info := stream.CachedInfo()
	return info.Created.UTC().Format(time.RFC3339Nano), info.State.LastSeq, nil
}

// Follow binds the index to the log, applies the log from where the index stands, and then follows
// it until ctx ends. What a writer of this process feeds by [DB.Feed] is not read again. It fails
// if the index does, and if the log has lost what was read: what was told to subscribers cannot be
// taken back.
func Follow(ctx context.Context, js jetstream.JetStream, db *DB, log *slog.Logger) error {
	if err := Bind(ctx, js, db, log); err != nil {
		return err
	}
	reading := bus.Reading{Stream: proto.StreamEvents, After: db.Seq()}
	f := bus.NewFollower(js, reading, log, func(messages []bus.Message) error { return db.applyLog(messages, log) })
	db.follower.Store(f)
	defer db.follower.Store(nil)
	return f.Run(ctx)
}

// Feed is [DB.Apply] for a writer that has just committed the records on the very head of the log
// that the index had reached: [Follow] does not read them again.
func (db *DB) Feed(recs []Record) error {
	if err := db.Apply(recs); err != nil {
		return err
	}
	if f := db.follower.Load(); f != nil {
		f.Advance(db.Seq())
	}
	return nil
}

// applyLog applies messages of the log. What the index has already is passed over, and a writer's
// mark only moves the sequence.
func (db *DB) applyLog(messages []bus.Message, log *slog.Logger) error {
	var recs []Record
	for _, m := range messages {
		if _, err := proto.ParseEventSubject(m.Subject); err != nil || m.Seq <= db.Seq() {
			continue
		}
		r := Record{Seq: m.Seq, Removed: m.Header.Get(proto.HeaderRemoved), Subject: m.Subject,
			Trace: m.Header.Get(proto.HeaderTraceParent), At: m.Time}
		var err error
		if r.Removed != "" {
			_, err = parseID(r.Removed)
		} else {
			r.Raw = m.Data
			if r.Event, err = decode(m.Data); err == nil {
				var badRequest error
				r.Floors, err = ReadFloors(m.Header[proto.HeaderFloor])
				r.Request, badRequest = readRequest(m.Header.Get(proto.HeaderRequest))
				err = errors.Join(err, badRequest, checkLogEvent(m.Subject, r.Event))
			}
		}
		if err != nil {
			// One bad message must not stop every index.
			log.Error("the log holds a message that is no event", "seq", m.Seq, "subject", m.Subject, "error", err)
			continue
		}
		recs = append(recs, r)
	}
	return db.apply(recs, messages[len(messages)-1].Seq)
}

// ReadFloors reads the floors of a deletion request, from the values of its header
// (proto.HeaderFloor).
func ReadFloors(values []string) (floors []proto.Floor, err error) {
	for _, value := range values {
		var f proto.Floor
		if err := json.Unmarshal([]byte(value), &f); err != nil {
			return nil, fmt.Errorf("read a floor: %w", err)
		}
		floors = append(floors, f)
	}
	return floors, nil
}

func readRequest(value string) (r proto.Request, err error) {
	if value == "" {
		return r, nil
	}
	if err := json.Unmarshal([]byte(value), &r); err != nil {
		return r, fmt.Errorf("read what was decided of a request: %w", err)
	}
	return r, nil
}

// checkLogEvent checks that an event has the place in the log that is its own, and its signature if
// it decides about other people's data: a login of the core account can have JetStream answer onto
// a subject of the log (docs/security.md).
func checkLogEvent(subject string, ev *nostr.Event) error {
	switch {
	case proto.EventSubjectOf(ev).String() != subject:
		return errors.New("the event is on the subject of another")
	case nostr.KindOf(ev.Kind).Decides && !(nostr.HasID(ev) && nostr.Signed(ev)):
		return errors.New("the id or the signature is not that of the event")
	}
	return nil
}

// WaitFor waits until the index has applied the log up to seq and has told its subscribers, for at
// most 30 s.
func (db *DB) WaitFor(ctx context.Context, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, waitMost)
	defer cancel()
	for {
		reached, moved := db.reached()
		if reached >= seq {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("wait for the index to reach %d, it is at %d: %w", seq, reached, ctx.Err())
		}
	}
}
