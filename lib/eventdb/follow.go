package eventdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

const (
	// lookEvery is how often it is looked whether the log is still the same.
	lookEvery = 2500 * time.Millisecond
	// waitMost bounds every wait for the index.
	waitMost = 30 * time.Second
)

// layout names how the index is laid out and what it means. Change it with either, and every index
// is rebuilt from the log.
const layout = "5"

// ErrOtherLog: the log is not the one that the index was made from. At the next start the index is
// rebuilt.
var ErrOtherLog = errors.New("NATS has another log now, or an earlier state of it: it is not the one that the index was made from " +
	"(docs/running.md, When NATS has lost its disk)")

// Bind makes sure that the index belongs to the log that js has now: an index of another log, of a
// later state of this one, or made under other rules is dropped and starts from nothing. Call it
// before the index is used: subscribers are not told. Where the other log has no event at all,
// nothing is dropped and the error is that of [DB.LogGone].
func Bind(ctx context.Context, js jetstream.JetStream, db *DB, log *slog.Logger) error {
	known, err := db.logIdentity()
	if err != nil {
		return err
	}
	seq := db.Seq() // before the log's head is asked for: a writer in this process moves both
	identity, head, err := lookAtLog(ctx, js, db)
	if err != nil {
		return err
	}
	if known == identity && seq <= head {
		return nil
	}
	made, _ := logMade(known)
	if known != "" && made != db.forgotten && !strings.HasSuffix(identity, logOf+made) {
		if err := lookForEvents(ctx, js, db); err != nil {
			return err
		}
	}
	switch {
	case known == "":
	case known != identity && strings.HasSuffix(identity, logOf+made):
		log.Info("the event index was made by another version of Tendril or under other settings, and is rebuilt from the log", "log_seq", head)
	default:
		log.Warn("the event index is of another log and is rebuilt", "index_seq", seq, "log_seq", head)
	}
	return db.reset(identity)
}

// lookForEvents returns an error when the log has no event, and the index is of one that had some.
func lookForEvents(ctx context.Context, js jetstream.JetStream, db *DB) error {
	stream, err := js.Stream(ctx, proto.StreamEvents)
	if err != nil {
		return fmt.Errorf("look at the log: %w", err)
	}
	_, err = stream.GetLastMsgForSubject(ctx, proto.AnyEvent)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return db.LogGone()
	}
	if err != nil {
		return fmt.Errorf("look for events in the log: %w", err)
	}
	return nil
}

// LogGone is asked when there is no log, or one without events. It gives an error when the index
// was made from a log that had some: an empty one in its place would hide that they are lost. The
// operator may say that this is meant, see [WithForgottenLog].
func (db *DB) LogGone() error {
	known, err := db.logIdentity()
	if err != nil {
		return err
	}
	made, ok := logMade(known)
	view := db.View()
	count, err := view.Len()
	if err := errors.Join(err, view.Close()); err != nil {
		return fmt.Errorf("look for events in the index: %w", err)
	}
	if !ok || count == 0 || slices.Contains(strings.Split(db.forgotten, ","), made) {
		return nil
	}
	return fmt.Errorf("the log of %s is gone: the index of this process knows %d of its events, and NATS has none; "+
		"see to it that NATS runs on its right volume, or restore the log, or, to begin again without these events, set NGIT_FORGET_LOG=%s", made, count, made)
}

// logOf stands in the identity of a log before the time at which it was made.
const logOf = "log of "

// logMade is the time in the identity of a log.
func logMade(identity string) (made string, ok bool) {
	_, made, ok = strings.Cut(identity, logOf)
	return made, ok
}

// lookAtLog returns what ties an index to the log, and the log's head. A stream that was deleted
// and made again has another time of creation.
func lookAtLog(ctx context.Context, js jetstream.JetStream, db *DB) (identity string, head uint64, err error) {
	stream, err := js.Stream(ctx, proto.StreamEvents)
	if err != nil {
		return "", 0, fmt.Errorf("look at the log: %w", err)
	}
	info := stream.CachedInfo()
	return fmt.Sprintf("layout %s, deletions disrespected %t, "+logOf+"%s", layout, db.keepDeleted, info.Created.UTC().Format(time.RFC3339Nano)),
		info.State.LastSeq, nil
}

// Follow binds the index to the log, applies the log from where the index stands, and then follows
// it until ctx ends. What a writer of this process feeds by [DB.Apply] is not read again. It fails
// if the index does, and if the log was replaced meanwhile ([ErrOtherLog]): what was told to
// subscribers cannot be taken back.
func Follow(ctx context.Context, js jetstream.JetStream, db *DB, log *slog.Logger) error {
	if err := Bind(ctx, js, db, log); err != nil {
		return err
	}
	reading := bus.Reading{Stream: proto.StreamEvents, After: db.Seq()}
	f := bus.NewFollower(js, reading, log, func(messages []bus.Message) error { return db.applyLog(messages, log) })
	db.follower.Store(f)
	defer db.follower.Store(nil)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { stop(watchLog(ctx, js, db)) }()
	if err := f.Run(ctx); err != nil {
		return err
	}
	if err := context.Cause(ctx); errors.Is(err, ErrOtherLog) {
		return err
	}
	return nil
}

// watchLog returns [ErrOtherLog] when the log is not the one that the index was made from, and
// another error when ctx ends.
func watchLog(ctx context.Context, js jetstream.JetStream, db *DB) error {
	known, err := db.logIdentity()
	if err != nil {
		return err
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		seq := db.Seq() // before the log's head is asked for: a writer in this process moves both
		identity, head, err := lookAtLog(ctx, js, db)
		if err == nil && (identity != known || head < seq) {
			return ErrOtherLog
		}
	}
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

// applyLog applies messages of the log. What the index has already is passed over.
func (db *DB) applyLog(messages []bus.Message, log *slog.Logger) error {
	var recs []Record
	for _, m := range messages {
		if m.Seq <= db.Seq() {
			continue
		}
		if _, err := proto.ParseEventSubject(m.Subject); err != nil {
			continue // a writer's mark
		}
		if removed := m.Header.Get(proto.HeaderRemoved); removed != "" {
			if _, err := parseID(removed); err != nil {
				log.Error("the log removes what is no event", "seq", m.Seq, "error", err)
				continue
			}
			recs = append(recs, Record{Seq: m.Seq, Removed: removed})
			continue
		}
		ev, err := decode(m.Data)
		if err != nil {
			// Ingest wrote it, so this is a bug somewhere; but one bad message must not stop every
			// index there is.
			log.Error("the log holds a message that is no event", "seq", m.Seq, "subject", m.Subject, "error", err)
			continue
		}
		recs = append(recs, Record{Seq: m.Seq, Event: ev, Raw: m.Data})
	}
	if err := db.Apply(recs); err != nil {
		return err
	}
	return db.Advance(messages[len(messages)-1].Seq)
}

// WaitFor waits until the index has applied the log up to seq and has told its subscribers, for at
// most 30 s.
func (db *DB) WaitFor(ctx context.Context, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, waitMost)
	defer cancel()
	for {
		db.stateMu.Lock()
		reached, moved := db.seq, db.moved
		db.stateMu.Unlock()
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
