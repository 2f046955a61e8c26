package eventdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/proto"
)

const (
	// followBatch and followBytes are the most that is applied at once, in messages and in bytes (a
	// last message may go beyond).
	followBatch = 500
	followBytes = 4 << 20
	// followAhead and followAheadBytes are the most that the server sends ahead.
	followAhead      = 2 * followBatch
	followAheadBytes = 8 << 20
	// announcedWait is how long a message is waited for that the server has announced.
	announcedWait = 50 * time.Millisecond
	// retryFollow is the pause before a broken follow is taken up again.
	retryFollow = time.Second
	// lookEvery is how often it is looked whether the log has gone on without the writer of this
	// process, while that feeds the index.
	lookEvery = 250 * time.Millisecond
	// lookWait is how long the writer has, when it has committed, to feed what it has committed:
	// a commit is in the log before it is on the disk. wantedWait is the same while somebody waits.
	lookWait   = 500 * time.Millisecond
	wantedWait = 50 * time.Millisecond
)

// layout names how the index is laid out and what it means. Change it with either, and every index
// is made anew from the log.
const layout = "4"

// ErrOtherLog: the log is not the one that the index was made from. Opened and bound again, the
// index is made anew.
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
		log.Info("the event index was made by another version of Tendril or under other settings, and is made anew from the log", "log_seq", head)
	default:
		log.Warn("the event index is of another log and is made anew", "index_seq", seq, "log_seq", head)
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
// it until ctx ends. While a writer of this process feeds the index ([DB.Apply]) the log is only
// looked at now and then. A broken connection to the bus is taken up again; other errors end it,
// and so does a log that was replaced meanwhile ([ErrOtherLog]): what was told to subscribers
// cannot be taken back.
func Follow(ctx context.Context, js jetstream.JetStream, db *DB, log *slog.Logger) error {
	if err := Bind(ctx, js, db, log); err != nil {
		return err
	}
	for {
		err := followOnce(ctx, js, db, log)
		if ctx.Err() != nil {
			return nil
		}
		var broken *indexError
		if errors.As(err, &broken) {
			return err
		}
		log.Warn("following the log broke off, trying again", "error", err)
		select {
		case <-time.After(retryFollow):
		case <-ctx.Done():
			return nil
		}
	}
}

// indexError is a failure of the index itself, which no new connection mends.
type indexError struct{ err error }

func (e *indexError) Error() string { return e.err.Error() }
func (e *indexError) Unwrap() error { return e.err }

// followOnce reads the log, or looks at it while a writer feeds the index, by turns.
func followOnce(ctx context.Context, js jetstream.JetStream, db *DB, log *slog.Logger) error {
	for {
		if _, err := headOf(ctx, js, db); err != nil {
			return err
		}
		if err := readLog(ctx, js, db, log); err != nil {
			return err
		}
		if err := lookOn(ctx, js, db); err != nil {
			return err
		}
	}
}

// headOf returns the head of the log, if that is still the one that the index was made from.
func headOf(ctx context.Context, js jetstream.JetStream, db *DB) (head uint64, err error) {
	known, err := db.logIdentity()
	if err != nil {
		return 0, &indexError{err}
	}
	seq := db.Seq() // before the log's head is asked for: a writer in this process moves both
	identity, head, err := lookAtLog(ctx, js, db)
	if err != nil {
		return 0, err
	}
	if identity != known || head < seq {
		return 0, &indexError{ErrOtherLog}
	}
	return head, nil
}

// lookOn returns when the log has gone on without the writer that feeds the index: another one
// writes, or this one does not any more. Nothing is received meanwhile of what is known.
func lookOn(ctx context.Context, js jetstream.JetStream, db *DB) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		patience := lookWait
		select {
		case <-tick.C:
		case <-db.wanted:
			patience = wantedWait
		case <-ctx.Done():
			return ctx.Err()
		}
		head, err := headOf(ctx, js, db)
		if err != nil {
			return err
		}
		if !db.fedWithin(ctx, patience, head) {
			return nil
		}
	}
}

// fedWithin reports whether the index reaches a sequence in so long, or in wantedWait from when
// somebody begins to wait for it.
func (db *DB) fedWithin(ctx context.Context, patience time.Duration, seq uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if patience > wantedWait {
		done := make(chan struct{})
		defer close(done)
		go func() {
			select {
			case <-db.wanted:
				time.AfterFunc(wantedWait, cancel)
			case <-done:
			}
		}()
	}
	return db.reach(ctx, seq) == nil
}

// readLog applies the log. It returns nil when a writer of this process feeds the index: when that
// has given it all that was read before the last batch, too.
func readLog(ctx context.Context, js jetstream.JetStream, db *DB, log *slog.Logger) error {
	consumer, err := js.OrderedConsumer(ctx, proto.StreamEvents, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:   db.Seq() + 1,
		// A lost consumer is given up and not taken up again in there: first the log is looked at
		// again.
		MaxResetAttempts: 1,
	})
	if err != nil {
		return fmt.Errorf("open log consumer: %w", err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(followAhead, followAheadBytes))
	if err != nil {
		return fmt.Errorf("open log consumer: %w", err)
	}
	defer messages.Stop()
	// Only Stop ends the wait for a server that is away; the context of Next does not.
	defer context.AfterFunc(ctx, messages.Stop)()
	for before := uint64(0); ; {
		recs, head, err := nextBatch(ctx, db, messages, log)
		if err != nil {
			return err
		}
		if err := db.apply(recs); err != nil {
			return &indexError{err}
		}
		if err := db.Advance(head); err != nil {
			return &indexError{err}
		}
		if before > 0 && db.fed.Load() >= before {
			messages.Stop()
			// What is left of the consumer costs the server little, and goes by itself.
			_ = js.DeleteConsumer(ctx, proto.StreamEvents, consumer.CachedInfo().Name)
			return nil
		}
		before = head
	}
}

// nextBatch waits for a message and takes with it what the server has ready, up to followBatch or
// followBytes. What the index has already is passed over unread. Of what the server has announced
// some may never come, because a newer message of its subject has replaced it: it is not waited for
// long.
func nextBatch(ctx context.Context, db *DB, messages jetstream.MessagesContext, log *slog.Logger) (recs []Record, head uint64, err error) {
	for pending, size := uint64(1), 0; pending > 0 && len(recs) < followBatch && size < followBytes; {
		wait := jetstream.NextContext(ctx)
		if head > 0 {
			wait = jetstream.NextMaxWait(announcedWait)
		}
		msg, err := messages.Next(wait)
		if errors.Is(err, nats.ErrTimeout) && head > 0 {
			return recs, head, nil
		}
		if err != nil {
			return nil, 0, fmt.Errorf("read the log: %w", err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return nil, 0, fmt.Errorf("read the log: %w", err)
		}
		pending, head = meta.NumPending, meta.Sequence.Stream
		if head <= db.Seq() {
			continue
		}
		if _, err := proto.ParseEventSubject(msg.Subject()); err != nil {
			continue // a writer's mark
		}
		if removed := msg.Headers().Get(proto.HeaderRemoved); removed != "" {
			if _, err := parseID(removed); err != nil {
				log.Error("the log removes what is no event", "seq", head, "error", err)
				continue
			}
			recs = append(recs, Record{Seq: head, Removed: removed})
			continue
		}
		ev, err := decode(msg.Data())
		if err != nil {
			// Ingest wrote it, so this is a bug somewhere; but one bad message must not stop every
			// index there is.
			log.Error("the log holds a message that is no event", "seq", head, "subject", msg.Subject(), "error", err)
			continue
		}
		recs, size = append(recs, Record{Seq: head, Event: ev, Raw: msg.Data()}), size+len(msg.Data())
	}
	return recs, head, nil
}

// decode reads an event that Apply will take.
func decode(data []byte) (*nostr.Event, error) {
	ev := new(nostr.Event)
	if err := ev.UnmarshalJSON(data); err != nil {
		return nil, err
	}
	_, badID := parseID(ev.ID)
	_, badAuthor := parseID(ev.PubKey)
	return ev, errors.Join(badID, badAuthor)
}
