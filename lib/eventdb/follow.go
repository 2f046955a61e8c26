package eventdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// waitMost bounds every wait for the index.
const waitMost = 30 * time.Second

// layout names how the index is laid out and what it means. Change it with either, and every index
// is rebuilt from the log.
const layout = "8"

// rules are what two indexes of one log must have in common to be the same.
func (db *DB) rules() string {
	return fmt.Sprintf("layout %s, deletions disrespected %t", layout, db.opts.KeepDeleted)
}

// Bind makes sure that the index belongs to the log that js has now: an index of another log, of a
// later state of this one, or made under other rules is dropped and starts from nothing. Call it
// before the index is used: subscribers are not told. Where the other log has no event at all,
// nothing is dropped and the error is that of [DB.LogGone].
func Bind(ctx context.Context, js jetstream.JetStream, db *DB, log *slog.Logger) error {
	known, rules, err := db.madeFrom()
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
	switch {
	case known == "":
	case other || seq > head:
		log.Warn("the event index is of another log and is rebuilt", "index_seq", seq, "log_seq", head)
	case rules == db.rules():
		return nil
	default:
		log.Info("the event index was made by another version of Tendril or under other settings, and is rebuilt from the log", "log_seq", head)
	}
	return db.reset(db.rules(), made)
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
			"see to it that NATS runs on its right volume, or restore the log, or, to begin again without these events, set NGIT_FORGET_LOG=%s", made, made)
	}
	return nil
}

// madeFrom is when the log was made that the index was made from, and under which rules; empty: none
// yet.
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
		r := Record{Seq: m.Seq, Removed: m.Header.Get(proto.HeaderRemoved), Trace: m.Header.Get(proto.HeaderTraceParent), At: m.Time}
		var err error
		if r.Removed != "" {
			_, err = parseID(r.Removed)
		} else {
			r.Raw = m.Data
			if r.Event, err = decode(m.Data); err == nil {
				r.Floors, err = ReadFloors(m.Header[proto.HeaderFloor])
				err = errors.Join(err, genuine(m.Subject, r.Event))
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

// ReadFloors reads the floors of a deletion request, from the values of its header (proto.HeaderFloor).
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

// genuine checks that an event has the place in the log that is its own, and its signature if it
// decides about other people's data: a login of the core account can have JetStream answer onto a
// subject of the log (docs/security.md).
func genuine(subject string, ev *nostr.Event) error {
	switch {
	case proto.EventSubjectOf(ev).String() != subject:
		return errors.New("the event is on the subject of another")
	case nostr.Decides(ev.Kind) && !(nostr.HasID(ev) && nostr.Signed(ev)):
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
